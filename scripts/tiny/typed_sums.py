"""Practice in arithmetic as people type it: bare signs, larger numbers, quotients, results below zero, and steps on."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from .arithmetic import added, divided, multiplied, multiplied_out, number, taken
from .samples import Sample, assistant, either, question, user

_WORDS = {"+": ("plus",), "-": ("minus",), "*": ("times", "multiplied by"), "/": ("divided by",)}
_SIGNS = {"+": ("+",), "-": ("-",), "*": ("*", "x", "×"), "/": ("/",)}
_ASKED = (
    "{}", "{}", "{} =", "{}=", "{} = ?", "{}?", "{}=?", "What is {}?", "what is {}", "What's {}?", "whats {}",
    "Calculate {}", "Compute {}", "How much is {}?", "Solve {}", "Tell me {}.", "can you calculate {}?",
    "and {}?", "Please compute {}.", "What does {} make?",
)  # fmt: skip


def typed(rng: Random) -> Sample:
    """Any two numbers and any sign, with spaces or without."""
    a, sign, b = _pair(rng)
    value, working = _worked(a, sign, b)
    if rng.random() < 0.25:
        told = f"{a} {rng.choice(_WORDS[sign])} {b}"
    else:
        gap = rng.choice(("", " "))
        told = f"{a}{gap}{rng.choice(_SIGNS[sign])}{gap}{b}"
    said = either(rng, f"{a} {sign} {b} = {value}.", f"The answer is {value}.", f"{value}")
    return question(
        "arithmetic", _key(a, sign, b), rng.choice(_ASKED).format(told), working, said, str(value)
    )


def three(rng: Random) -> Sample:
    """A sum of three, as the sum of two and one more."""
    a, b, c = (number(rng, 2) for _ in range(3))
    gap = rng.choice(("", " "))
    asked = rng.choice(_ASKED).format(f"{a}{gap}+{gap}{b}{gap}+{gap}{c}")
    value, working = a + b + c, f"{added(a, b)} Then {added(a + b, c)}"
    said = either(rng, f"{a} + {b} + {c} = {value}.", f"The answer is {value}.")
    mentions = tuple(f"arithmetic:{_key(x, '+', y)}" for x, y in ((a, b), (a + b, c)))
    key = f"arithmetic:{'+'.join(map(str, sorted((a, b, c))))}"
    return Sample(
        "arithmetic", key, (user(asked), assistant(said, working)), str(value), mentions=mentions
    )


def carried_further(rng: Random) -> Sample:
    """One or two steps on from a result."""
    a, sign, b = next(
        pair for pair in iter(lambda: _pair(rng), None) if pair[1] != "-" or pair[0] >= pair[2]
    )
    value, _ = _worked(a, sign, b)
    messages = [
        user(rng.choice(_ASKED).format(f"{a} {sign} {b}")),
        assistant(f"{a} {sign} {b} = {value}."),
    ]
    mentions, key = [f"arithmetic:{_key(a, sign, b)}"], f"reference:{a}{sign}{b}"
    for _ in range(rng.choice((1, 1, 2))):
        step, by, asked = _step(rng, value)
        following, working = _worked(value, step, by)
        messages += [
            user(asked),
            assistant(f"{value} {step} {by} = {following}.", f"We have {value}. {working}"),
        ]
        mentions.append(f"arithmetic:{_key(value, step, by)}")
        key, value = f"{key}{step}{by}", following
    *before, asked_last, said = messages
    history = [assistant(m.content) if m.reasoning else m for m in before]
    return Sample(
        "reference", key, (*history, asked_last, said), str(value), mentions=tuple(mentions)
    )


def _step(rng: Random, value: int) -> tuple[str, int, str]:
    """A sign, a number, and the words for both."""
    by = number(rng, 2)
    if value >= by and rng.random() < 0.4:
        ways = (
            f"minus {by}",
            f"and minus {by}?",
            f"Now subtract {by}.",
            f"Take away {by}.",
            f"- {by}",
            f"And {by} less?",
        )
        return "-", by, rng.choice(ways)
    if 2 <= value <= 99 and rng.random() < 0.3:
        by = rng.randint(2, 9)
        return (
            "*",
            by,
            either(rng, f"times {by}", f"and times {by}?", f"Multiply that by {by}.", f"* {by}"),
        )
    ways = (
        f"plus {by}",
        f"and plus {by}?",
        f"Now add {by}",
        f"and {by} more",
        f"+ {by}",
        f"+{by}",
        f"Plus {by}?",
    )
    return "+", by, rng.choice(ways)


def _pair(rng: Random) -> tuple[int, str, int]:
    sign = rng.choices("+-*/", (4, 4, 4, 2))[0]
    if sign == "*":
        if rng.random() < 0.6:
            return rng.randint(1, 99), sign, rng.randint(1, 10)
        return rng.randint(10, 99), sign, rng.randint(10, 99)
    if sign == "/":
        b = rng.randint(2, 9)
        return b * rng.randint(1, 99), sign, b
    digits = rng.choice((1, 2, 3, 4))
    a, b = number(rng, digits), number(rng, digits)
    return (a, sign, b) if sign == "+" or a >= b or rng.random() < 0.3 else (b, sign, a)


def _worked(a: int, sign: str, b: int) -> tuple[int, str]:
    """The value and the working."""
    if sign == "-" and a < b:
        return (
            a - b,
            f"{a} is smaller than {b}, so it is below zero. {taken(b, a)} So {a} - {b} = {a - b}.",
        )
    if sign == "*" and b >= 10:
        return a * b, multiplied_out(a, b)
    works: dict[str, tuple[Callable[[int, int], int], Callable[[int, int], str]]] = {
        "+": (int.__add__, added), "-": (int.__sub__, taken), "*": (int.__mul__, multiplied), "/": (int.__floordiv__, divided),
    }  # fmt: skip
    value, working = works[sign]
    return value(a, b), working(a, b)


def _key(a: int, sign: str, b: int) -> str:
    """The key of the same question in other words."""
    if sign in "+*":
        a, b = sorted((a, b))
    return f"{a}{sign}{b}"


PRACTICE = ((typed, 5), (three, 1), (carried_further, 2))
