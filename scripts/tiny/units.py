"""Conversions between units by whole factors, both ways."""

from __future__ import annotations

from random import Random

from .arithmetic import divided, multiplied
from .samples import Sample, either, question

_TENS = (
    ("kilometres", "metres", 1000), ("metres", "centimetres", 100), ("centimetres", "millimetres", 10),
    ("kilograms", "grams", 1000), ("litres", "millilitres", 1000), ("tonnes", "kilograms", 1000),
    ("euros", "cents", 100),
)  # fmt: skip
_SMALL = (
    ("weeks", "days", 7),
    ("days", "hours", 24),
    ("hours", "minutes", 60),
    ("dozens", "pieces", 12),
)


def convert(rng: Random) -> Sample:
    large, small, factor = rng.choice(_TENS if rng.random() < 0.6 else _SMALL)
    most = 99 if factor % 10 == 0 else 9
    count = rng.randint(2, most)
    backwards = rng.random() < 0.4
    have, unit, want = (count * factor, small, large) if backwards else (count, large, small)
    value = count if backwards else count * factor
    asked = either(
        rng, f"How many {want} are {have} {unit}?", f"Convert {have} {unit} to {want}.",
        f"What is {have} {unit} in {want}?",
    )  # fmt: skip
    thought = f"One of the {large} is {factor} {small}. {_working(count, factor, backwards)}"
    said = f"{have} {unit} are {value} {want}."
    return question("units", f"{have}/{unit}/{want}", asked, thought, said, str(value))


def _working(count: int, factor: int, backwards: bool) -> str:
    total = count * factor
    if backwards and factor == 60:
        return f"{total} / 10 = {total // 10}. {divided(total // 10, 6)}"
    if backwards:
        return f"{total} / {factor} = {count}, since {count} * {factor} = {total}."
    if factor == 60:
        return f"{multiplied(count, 6)} {count * 6} * 10 = {total}."
    if factor in (7, 12, 24):
        return multiplied(factor, count)
    return f"{count} * {factor} = {total}."


MAKERS = ((convert, 1),)
