"""Practice in copying: invented words of many tokens, said again letter by letter as they were given."""

from __future__ import annotations

from random import Random

from .names import and_list, text, wide_word
from .samples import Sample, either, question


def said_again(rng: Random) -> Sample:
    """What stands in a request, alone or in quotes."""
    given = " ".join(text(rng) for _ in range(rng.choice((1, 1, 2, 3))))
    if rng.random() < 0.03:
        given = f"C:\\{wide_word(rng)}\\{given}"
    asked = either(
        rng, f"Repeat: {given}", f"Say exactly this: {given}", f"Write down {given}", f'Say "{given}"',
        f"repeat after me: {given}", f'Write "{given}".', f"Copy this: {given}", f"say {given}",
    )  # fmt: skip
    return question("copy", asked, asked, "I say what I was given.", given, given)


def looked_up(rng: Random) -> Sample:
    """One of several things that were told, in a list of pairs."""
    pairs = {wide_word(rng): text(rng) for _ in range(rng.randint(2, 6))}
    wanted = rng.choice(list(pairs))
    value = pairs[wanted]
    told = either(
        rng, and_list([f"{key} is {given}" for key, given in pairs.items()]),
        "; ".join(f"{key}: {given}" for key, given in pairs.items()),
        ", ".join(f'{key} = "{given}"' for key, given in pairs.items()),
    )  # fmt: skip
    asked = f"{told}. What is {wanted}?"
    thought = f"The text says that {wanted} is {value}."
    return question("copy", asked, asked, thought, f"{wanted} is {value}.", value)


MAKERS = ((said_again, 1), (looked_up, 2))
