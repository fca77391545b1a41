"""Lists: sorting, counting, reversing, first and last."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from .names import ANIMALS, COLOURS, PEOPLE, THINGS, text, word
from .samples import Sample, question


def _items(rng: Random) -> list[str]:
    count = rng.randint(3, 5)
    if rng.random() < 0.25:
        return list(dict.fromkeys(word(rng) for _ in range(count)))
    return rng.sample(rng.choice((ANIMALS, COLOURS, PEOPLE, THINGS)), count)


def words(rng: Random) -> Sample:
    return _about(rng, _items(rng))


def _about(rng: Random, items: list[str]) -> Sample:
    given = ", ".join(items)
    verb, ask, work = rng.choice(_ON_WORDS)
    answer = work(items)
    numbered = ", ".join(f"{i} {item}" for i, item in enumerate(items, 1))
    thought = f"The items are: {numbered}. {verb}: {answer}."
    return question("lists", f"{ask}/{given}", ask.format(given), thought, answer, answer)


def numbers(rng: Random) -> Sample:
    values = rng.sample(range(1, 100), rng.randint(3, 4))
    given = ", ".join(map(str, values))
    up = rng.random() < 0.6
    order = sorted(values, reverse=not up)
    answer = ", ".join(map(str, order))
    word_ = "smallest" if up else "largest"
    asked = f"Sort these numbers, {word_} first: {given}."
    thought = "; ".join(f"next {word_} is {value}" for value in order) + "."
    return question("lists", f"{word_}/{given}", asked, thought, answer, answer)


def lines(rng: Random) -> Sample:
    """A list in the answer, one line each."""
    return _numbered(_items(rng))


def _numbered(items: list[str]) -> Sample:
    asked = f"Make a numbered list of: {', '.join(items)}."
    answer = "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1))
    thought = f"There are {len(items)} items. I write one line for each."
    return question("lists", f"lines/{','.join(items)}", asked, thought, answer, answer)


def counted(rng: Random) -> Sample:
    """Practice: counting up or down."""
    first, steps = rng.choice((1, 1, rng.randint(0, 60))), rng.randint(2, 11)
    down = rng.random() < 0.3
    a, b = (first + steps, first) if down else (first, first + steps)
    asked = rng.choice(("Count from {} to {}.", "count from {} to {}", "Count to {1}.", "Count to {1}") if a == 1
                       else ("Count from {} to {}.", "count from {} to {}", "Which numbers go from {} to {}?"))  # fmt: skip
    answer = ", ".join(map(str, range(a, b - 1, -1) if down else range(a, b + 1)))
    thought = f"I start at {a} and stop at {b}."
    return question("lists", f"count/{a}/{b}", asked.format(a, b), thought, f"{answer}", answer)


def any_words(rng: Random) -> Sample:
    """Practice: the same about lists of anything."""
    items = list(dict.fromkeys(text(rng) for _ in range(rng.randint(2, 6))))
    return _about(rng, items) if rng.random() < 0.7 else _numbered(items)


_ON_WORDS: tuple[tuple[str, str, Callable[[list[str]], str]], ...] = (
    ("Reversed", "Reverse this list: {}.", lambda items: ", ".join(reversed(items))),
    ("The first is", "What is the first item of this list: {}?", lambda items: items[0]),
    ("The last is", "What is the last item of this list: {}?", lambda items: items[-1]),
    ("The count is", "How many items are in this list: {}?", lambda items: str(len(items))),
    ("The second is", "What is the second item of this list: {}?", lambda items: items[1]),
)
PRACTICE = ((counted, 1), (any_words, 3))
MAKERS = ((words, 3), (numbers, 1), (lines, 1))
