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
    thought = f"Before {MONTHS[at]} is {target}." if step < 0 else _months_on(at, step)
    return question("calendar", f"{MONTHS[at]}/{step}", asked, thought, f"It is {target}.", target)


def months_later(rng: Random) -> Sample:
    """Practice: more months on, in more words."""
    at, step = rng.randrange(12), rng.randint(4, 8)
    target = MONTHS[(at + step) % 12]
    asked = either(
        rng, f"Which month is {step} months after {MONTHS[at]}?", f"It is {MONTHS[at]}. Which month is it in {step} months?",
        f"What month comes {step} months after {MONTHS[at]}?",
    )  # fmt: skip
    thought = _months_on(at, step)
    return question("calendar", f"{MONTHS[at]}/{step}", asked, thought, f"It is {target}.", target)


def _months_on(at: int, step: int) -> str:
    """Counting, month by month."""
    return ", ".join(f"{i} {MONTHS[(at + i) % 12]}" for i in range(1, step + 1)) + "."


def next_day(rng: Random) -> Sample:
    """Practice: yesterday and tomorrow. The keys are those of a day later or before."""
    at, back = rng.randrange(7), rng.random() < 0.4
    day, target = DAYS[at], DAYS[(at + (-1 if back else 1)) % 7]
    asked = (
        either(rng, f"Today is {day}. What day was yesterday?", f"What day comes before {day}?", f"Which day is before {day}?")
        if back
        else either(rng, f"Today is {day}. What day is tomorrow?", f"What day comes after {day}?",
                    f"What comes after {day}?", f"If today is {day}, what is tomorrow?")
    )  # fmt: skip
    key = f"{day}/{'before' if back else 'after'}/1"
    return question("calendar", key, asked, f"1 {target}.", f"It is {target}.", target)


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


PRACTICE = ((months_later, 1), (next_day, 1))
MAKERS = ((day_later, 2), (month_next, 1), (month_length, 1), (clock_later, 3))
