"""Days, months and the clock."""

from __future__ import annotations

from random import Random

from .names import DAYS, MONTHS
from .samples import Sample, either, question

_LENGTHS = dict(zip(MONTHS, (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), strict=True))


def day_later(rng: Random) -> Sample:
    start, step = rng.randrange(7), rng.randint(1, 9)
    back = rng.random() < 0.4
    days = [DAYS[(start + (-i if back else i)) % 7] for i in range(1, step + 1)]
    word = "before" if back else "after"
    plural = "day" if step == 1 else "days"
    asked = either(
        rng, f"Which day comes {step} {plural} {word} {DAYS[start]}?",
        f"What day of the week is {step} {plural} {word} {DAYS[start]}?",
    )  # fmt: skip
    thought = ", ".join(f"{i} {day}" for i, day in enumerate(days, 1)) + "."
    said = f"{step} {plural} {word} {DAYS[start]} is {days[-1]}."
    return question("calendar", f"{DAYS[start]}/{word}/{step}", asked, thought, said, days[-1])


def month_next(rng: Random) -> Sample:
    at, step = rng.randrange(12), rng.choice((-1, 1, 2, 3))
    target = MONTHS[(at + step) % 12]
    words = {
        -1: "comes before",
        1: "comes after",
        2: "is two months after",
        3: "is three months after",
    }
    asked = f"Which month {words[step]} {MONTHS[at]}?"
    sign = "-" if step < 0 else "+"
    thought = f"{MONTHS[at]} is month {at + 1}. {at + 1} {sign} {abs(step)} = {at + 1 + step}."
    thought += f" {at + 1 + step} - 12 = {at + 1 + step - 12}." if at + step > 11 else ""
    thought += f" I need month {(at + step) % 12 + 1}: {target}."
    return question("calendar", f"{MONTHS[at]}/{step}", asked, thought, f"It is {target}.", target)


def month_length(rng: Random) -> Sample:
    month, way = rng.choice(MONTHS), rng.randrange(4)
    asked = (
        f"How many days does {month} have?", f"How long is {month}?",
        f"How many days are there in {month}?", f"What is the last day number of {month}?",
    )[way]  # fmt: skip
    days = _LENGTHS[month]
    thought = f"The length of {month} is {days} days."
    said = f"{month} has {days} days" + (", or 29 in a leap year." if days == 28 else ".")
    return question("calendar", f"{month}/length/{way}", asked, thought, said, str(days))


def clock_later(rng: Random) -> Sample:
    start = rng.randrange(0, 24 * 60, 5)
    minutes = rng.choice((5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 90, 120))
    end = (start + minutes) % (24 * 60)
    asked = either(
        rng, f"What time is it {minutes} minutes after {shown(start)}?",
        f"It is {shown(start)} now. What time is it in {minutes} minutes?",
        f"A train leaves at {shown(start)} and needs {minutes} minutes. When does it arrive?",
    )  # fmt: skip
    total = start % 60 + minutes
    hours = start // 60 + total // 60
    thought = (
        f"Minutes: {start % 60} + {minutes} = {total}, that is {total // 60} h {total % 60} min. "
    )
    thought += f"Hours: {start // 60} + {total // 60} = {hours}."
    thought += f" {hours} - 24 = {hours - 24}." if hours >= 24 else ""
    return question(
        "clock", f"{start}+{minutes}", asked, thought, f"It is {shown(end)}.", shown(end)
    )


def shown(minutes: int) -> str:
    """`07:05`."""
    return f"{minutes // 60:02}:{minutes % 60:02}"


MAKERS = ((day_later, 2), (month_next, 1), (month_length, 1), (clock_later, 3))
