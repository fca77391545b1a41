"""Sums, differences and products with the working written out digit by digit."""

from __future__ import annotations

from random import Random

from .names import THINGS, name
from .samples import Sample, assistant, either, question, user

_PLACES = ("units", "tens", "hundreds", "thousands", "ten thousands")


def added(a: int, b: int) -> str:
    """The working of a + b, column by column."""
    steps, carry = [], 0
    for i in range(max(len(str(a)), len(str(b)))):
        x, y = a // 10**i % 10, b // 10**i % 10
        total = x + y + carry
        carried = f" + {carry}" if carry else ""
        carry = total // 10
        after = f", write {total % 10}, carry 1" if carry else ""
        steps.append(f"{_PLACES[i]}: {x} + {y}{carried} = {total}{after}")
    return f"{'; '.join(steps)}. So {a} + {b} = {a + b}."


def taken(a: int, b: int) -> str:
    """The working of a - b for a >= b, column by column."""
    steps, borrow = [], 0
    for i in range(len(str(a))):
        x, y = a // 10**i % 10, b // 10**i % 10
        top = x - borrow
        lent = f" - {borrow}" if borrow else ""
        borrow = 1 if top < y else 0
        ten = "10 + " if borrow else ""
        after = ", borrow 1" if borrow else ""
        steps.append(f"{_PLACES[i]}: {ten}{x}{lent} - {y} = {top + 10 * borrow - y}{after}")
    return f"{'; '.join(steps)}. So {a} - {b} = {a - b}."


def multiplied(a: int, b: int) -> str:
    """The working of a * b for a one-digit b: one product per digit of a, then their sum."""
    digits = [int(d) * 10**i for i, d in enumerate(reversed(str(a))) if d != "0"]
    parts = [f"{digit} * {b} = {digit * b}" for digit in reversed(digits)]
    total, sums = 0, []
    for digit in reversed(digits):
        if total:
            sums.append(f"{total} + {digit * b} = {total + digit * b}")
        total += digit * b
    return f"{'; '.join([*parts, *sums])}. So {a} * {b} = {a * b}."


def multiplied_out(a: int, b: int) -> str:
    """The working of a * b for any b: every digit of a by every digit of b, then the sum of those."""
    digits = [[int(d) * 10**i for i, d in enumerate(reversed(str(n))) if d != "0"] for n in (a, b)]
    parts = [(x, y) for x in reversed(digits[0]) for y in reversed(digits[1])]
    steps, total = [f"{x} * {y} = {x * y}" for x, y in parts], 0
    for x, y in parts:
        if total:
            steps.append(f"{total} + {x * y} = {total + x * y}")
        total += x * y
    return f"{'; '.join(steps)}. So {a} * {b} = {a * b}."


def divided(a: int, b: int) -> str:
    """The working of a / b that comes out even, for a one-digit b: long division."""
    steps, rest = [], 0
    for digit in str(a):
        top = rest * 10 + int(digit)
        rest = top % b
        steps.append(f"{top} / {b} = {top // b}" + (f", rest {rest}" if rest else ""))
    return f"{'; '.join(steps)}. So {a} / {b} = {a // b}."


def number(rng: Random, digits: int = 3) -> int:
    """A number of one to so many digits, each length as likely."""
    count = rng.randint(1, digits)
    return rng.randint(10 ** (count - 1) if count > 1 else 0, 10**count - 1)


def sum_of_two(rng: Random) -> Sample:
    a, b = number(rng), number(rng)
    asked = either(
        rng, f"What is {a} + {b}?", f"Add {a} and {b}.", f"How much is {a} plus {b}?", f"{a} + {b} = ?",
        f"Please add {b} to {a}.", f"Calculate {a} + {b}.",
    )  # fmt: skip
    said = either(rng, f"{a} + {b} = {a + b}.", f"The answer is {a + b}.", f"{a + b}")
    return question("arithmetic", _sum_key(a, b), asked, added(a, b), said, str(a + b))


def _sum_key(a: int, b: int) -> str:
    return f"{min(a, b)}+{max(a, b)}"


def difference(rng: Random) -> Sample:
    b, a = sorted((number(rng), number(rng)))
    asked = either(
        rng, f"What is {a} - {b}?", f"Subtract {b} from {a}.", f"How much is {a} minus {b}?",
        f"{a} - {b} = ?", f"Take {b} away from {a}.", f"Calculate {a} - {b}.",
    )  # fmt: skip
    said = either(rng, f"{a} - {b} = {a - b}.", f"The answer is {a - b}.", f"{a - b}")
    return question("arithmetic", f"{a}-{b}", asked, taken(a, b), said, str(a - b))


def product(rng: Random) -> Sample:
    a, b = rng.randint(2, 99), rng.randint(2, 9)
    asked = either(
        rng, f"What is {a} * {b}?", f"Multiply {a} by {b}.", f"How much is {a} times {b}?",
        f"{a} * {b} = ?", f"What is {a} × {b}?",
    )  # fmt: skip
    said = either(rng, f"{a} * {b} = {a * b}.", f"The answer is {a * b}.", f"{a * b}")
    low, high = sorted((a, b))
    return question("arithmetic", f"{low}*{high}", asked, multiplied(a, b), said, str(a * b))


def story(rng: Random) -> Sample:
    """A word problem of one step."""
    who, other, things = name(rng), name(rng), rng.choice(THINGS)
    b, a = sorted((number(rng, 2), number(rng, 2) + 2))
    if rng.random() < 0.5:
        asked = f"{who} has {a} {things} and gets {b} more from {other}. How many {things} does {who} have now?"
        thought, total = f"{who} has {a} and gets {b}: {added(a, b)}", a + b
    else:
        asked = (
            f"{who} has {a} {things} and gives {b} of them to {other}. How many {things} are left?"
        )
        thought, total = f"{who} has {a} and gives away {b}: {taken(a, b)}", a - b
    key = f"story/{who}/{things}/{a}/{b}/{total}"
    return question("arithmetic", key, asked, thought, f"{who} has {total} {things}.", str(total))


def comparison(rng: Random) -> Sample:
    a = number(rng)
    b = next(n for n in iter(lambda: number(rng), None) if n != a)
    larger = rng.random() < 0.5
    right = max(a, b) if larger else min(a, b)
    word, sign = ("larger", ">" if a > b else "<") if larger else ("smaller", ">" if a > b else "<")
    asked = either(rng, f"Which is {word}, {a} or {b}?", f"Which number is {word}: {a} or {b}?")
    thought = f"{a} {sign} {b}, so {right} is {word}."
    return question(
        "arithmetic", f"{word}/{a}/{b}", asked, thought, f"{right} is {word}.", str(right)
    )


def carried_on(rng: Random) -> Sample:
    """A second step that says `that`."""
    a, b, c = number(rng, 2), number(rng, 2), number(rng, 2)
    first = a + b
    messages = (
        user(f"What is {a} + {b}?"),
        assistant(f"{a} + {b} = {first}."),
        user(either(rng, f"Add {c} to that.", f"And {c} more?", f"Now add {c}.")),
        assistant(f"{first} + {c} = {first + c}.", f"We have {first}. {added(first, c)}"),
    )
    mentions = tuple(f"arithmetic:{_sum_key(*pair)}" for pair in ((a, b), (first, c)))
    return Sample(
        "reference", f"reference:{a}+{b}+{c}", messages, str(first + c), mentions=mentions
    )


MAKERS = ((sum_of_two, 4), (difference, 4), (product, 3), (story, 2), (comparison, 1))
