"""Practice in copying: invented words of many tokens, said again letter by letter as they were given."""

from __future__ import annotations

from random import Random

from .names import and_list, name, phrase, word
from .samples import Sample, either, question


def said_again(rng: Random) -> Sample:
    text = _text(rng)
    asked = either(rng, f"Repeat: {text}", f"Say exactly this: {text}", f"Write down {text}")
    return question("copy", asked, asked, "I say what I was given.", text, text)


def looked_up(rng: Random) -> Sample:
    """One of several things that were told, in a list of pairs."""
    pairs = {word(rng, rng.randint(1, 3)): _text(rng) for _ in range(rng.randint(2, 5))}
    wanted = rng.choice(list(pairs))
    value = pairs[wanted]
    told = and_list([f"{key} is {text}" for key, text in pairs.items()])
    asked = f"{told}. What is {wanted}?"
    thought = f"The text says that {wanted} is {value}."
    return question("copy", asked, asked, thought, f"{wanted} is {value}.", value)


def _text(rng: Random) -> str:
    makers = (
        lambda: word(rng, rng.randint(2, 5)),
        lambda: word(rng, rng.randint(2, 4)).capitalize(),
        lambda: f"{word(rng, rng.randint(1, 3))}-{rng.randint(10, 9999)}",
        lambda: f"{name(rng)} {word(rng).capitalize()}",
        lambda: phrase(rng),
    )
    return rng.choice(makers)()


MAKERS = ((said_again, 1), (looked_up, 2))
