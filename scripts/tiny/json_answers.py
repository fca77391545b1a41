"""Answers that are one JSON value and nothing else."""

from __future__ import annotations

import json
from random import Random

from .names import COLOURS, THINGS, and_list, name, text, wide_word, word
from .samples import Sample, assistant, either, user
from .world import TOWNS, stated

_ONLY = ("Answer with JSON only.", "Reply in JSON.", "Give me only JSON.")


def person(rng: Random) -> Sample:
    """Fields out of a sentence."""
    who, age, colour = name(rng), rng.randint(3, 99), rng.choice(COLOURS)
    told = f"{who} is {age} years old and likes {colour}."
    fields = rng.sample((("name", who), ("age", age), ("colour", colour)), rng.randint(2, 3))
    keys = ", ".join(key for key, _ in fields)
    asked = f"{told} Write this as JSON with the keys {keys}. {rng.choice(_ONLY)}"
    thought = f"The keys are {keys}. " + " ".join(f"{key} is {value}." for key, value in fields)
    return _json(f"person/{who}/{age}/{keys}", asked, thought, dict(fields))


def town(rng: Random) -> Sample:
    """Facts of the world as an object."""
    of = rng.choice(TOWNS)
    attributes = rng.sample(("island", "river", "mayor", "food", "trade"), rng.randint(1, 3))
    keys = ", ".join(["town", *attributes])
    asked = f"Describe {of.name} as JSON with the keys {keys}. {rng.choice(_ONLY)}"
    recalled = "; ".join(stated(of, attribute) for attribute in attributes)
    thought = f"The keys are {keys}. I recall that {recalled}."
    value = {"town": of.name} | {attribute: getattr(of, attribute) for attribute in attributes}
    return _json(f"town/{of.name}/{keys}", asked, thought, value)


def stock(rng: Random) -> Sample:
    """A list of objects."""
    items = [(thing, rng.randint(1, 60)) for thing in rng.sample(THINGS, rng.randint(1, 3))]
    told = ", ".join(f"{count} {thing}" for thing, count in items)
    asked = f"In the box are {told}. List them as JSON objects with the keys item and count. {rng.choice(_ONLY)}"
    thought = f"There are {len(items)} entries: {told}."
    value = [{"item": thing, "count": count} for thing, count in items]
    return _json(f"stock/{told}", asked, thought, value)


def flags(rng: Random) -> Sample:
    """Nested, with booleans and null."""
    device, on = word(rng), rng.random() < 0.5
    level = rng.choice((None, rng.randint(0, 100)))
    state = either(rng, "is on", "is running") if on else either(rng, "is off", "is not running")
    told = f"The {device} {state}" + (
        f" at level {level}." if level is not None else " and its level is unknown."
    )
    asked = f'{told} Write it as JSON like {{"device": ..., "state": {{"on": ..., "level": ...}}}}. {rng.choice(_ONLY)}'
    thought = f"The device is {device}. on is {json.dumps(on)}, level is {json.dumps(level)}."
    value = {"device": device, "state": {"on": on, "level": level}}
    return _json(f"flags/{told}", asked, thought, value)


def echoed(rng: Random) -> Sample:
    """Practice: any keys with any values."""
    keys = (
        rng.choice(_KEYS) if rng.random() < 0.7 else wide_word(rng)
        for _ in range(rng.randint(1, 4))
    )
    value = {key: _any_value(rng) for key in keys}
    spoken = rng.choice(("{} is {}", "{}: {}", "{} = {}", "{} {}"))
    told = rng.choice((and_list, ", ".join, "; ".join))(
        [spoken.format(key, _plain(v)) for key, v in value.items()]
    )
    given = ", ".join(value)
    asked = rng.choice((
        f"{told}. Write this as JSON with the keys {given}. {rng.choice(_ONLY)}", f"Write as JSON: {told}.",
        f"{told}. {rng.choice(_ONLY)}", f"Make a JSON object of this: {told}", f"Give me JSON: {told}",
    ))  # fmt: skip
    thought = f"The keys are {given}. " + " ".join(
        f"{key} is {json.dumps(v, ensure_ascii=False)}." for key, v in value.items()
    )
    return _json(f"echo/{told}", asked, thought, value)


def array(rng: Random) -> Sample:
    """Practice: a list of strings or numbers."""
    whole = rng.random() < 0.3
    items = [rng.randint(0, 9999) if whole else text(rng) for _ in range(rng.randint(1, 5))]
    told = ", ".join(map(str, items))
    asked = rng.choice((
        f"Write as a JSON array: {told}.", f"Make a JSON list of {told}", f"{told}. Write this as a JSON array. {rng.choice(_ONLY)}",
    ))  # fmt: skip
    kind = "number" if whole else "string"
    thought = f"There are {len(items)} entries, each a {kind}: {told}."
    return _json(f"array/{told}", asked, thought, items)


_KEYS = (
    "name",
    "id",
    "age",
    "city",
    "email",
    "title",
    "code",
    "count",
    "price",
    "colour",
    "file",
    "owner",
    "active",
    "note",
)


def _any_value(rng: Random) -> object:
    makers = (
        text,
        lambda rng: rng.randint(0, 99999),
        lambda rng: rng.random() < 0.5,
        lambda _: None,
    )
    return rng.choices(makers, (7, 3, 1, 0.5))[0](rng)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _json(key: str, asked: str, thought: str, value: object) -> Sample:
    said = json.dumps(value, ensure_ascii=False)
    messages = (user(asked), assistant(said, thought))
    return Sample("json", f"json:{key}", messages, said, as_json=True)


MAKERS = ((person, 2), (town, 2), (stock, 1), (flags, 1))
PRACTICE = ((echoed, 3), (array, 1))
