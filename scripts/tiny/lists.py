"""Lists: sorting, counting, reversing, first and last."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from .names import ANIMALS, COLOURS, PEOPLE, THINGS, word
from .samples import Sample, question


def _items(rng: Random) -> list[str]:
    count = rng.randint(3, 5)
    if rng.random() < 0.25:
        return list(dict.fromkeys(word(rng) for _ in range(count)))
    return rng.sample(rng.choice((ANIMALS, COLOURS, PEOPLE, THINGS)), count)


def words(rng: Random) -> Sample:
    items = _items(rng)
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
    items = _items(rng)
    asked = f"Make a numbered list of: {', '.join(items)}."
    answer = "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1))
    thought = f"There are {len(items)} items. I write one line for each."
    return question("lists", f"lines/{','.join(items)}", asked, thought, answer, answer)


_ON_WORDS: tuple[tuple[str, str, Callable[[list[str]], str]], ...] = (
    ("Reversed", "Reverse this list: {}.", lambda items: ", ".join(reversed(items))),
    ("The first is", "What is the first item of this list: {}?", lambda items: items[0]),
    ("The last is", "What is the last item of this list: {}?", lambda items: items[-1]),
    ("The count is", "How many items are in this list: {}?", lambda items: str(len(items))),
    ("The second is", "What is the second item of this list: {}?", lambda items: items[1]),
)
MAKERS = ((words, 3), (numbers, 1), (lines, 1))
