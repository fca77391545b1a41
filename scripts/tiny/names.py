"""Words to fill templates with: given names, things, and invented words that exist nowhere."""

from __future__ import annotations

from random import Random

PEOPLE = (
    "Ada", "Bela", "Caro", "Dario", "Edda", "Finn", "Gita", "Hugo", "Ines", "Jonas", "Kira", "Lino",
    "Mara", "Nils", "Olga", "Piet", "Quinn", "Rosa", "Sami", "Tess", "Ugo", "Vera", "Willa", "Xenia",
    "Yuri", "Zoe", "Amir", "Bodil", "Cleo", "Dov", "Elin", "Farid", "Greta", "Hedda", "Ivo", "Jana",
)  # fmt: skip
THINGS = (
    "apples", "bricks", "candles", "drums", "eggs", "flutes", "grapes", "hats", "jars", "keys",
    "lamps", "maps", "nails", "onions", "pears", "ropes", "shells", "tiles", "books", "wheels",
    "coins", "stones", "cups", "plates", "boxes", "ribbons", "buttons", "bottles", "plums", "spoons",
)  # fmt: skip
COLOURS = ("red", "blue", "green", "yellow", "white", "black", "brown", "grey", "violet", "orange")
ANIMALS = ("cat", "dog", "goat", "hen", "horse", "parrot", "rabbit", "turtle", "mouse", "donkey")
ROOMS = ("kitchen", "hall", "cellar", "attic", "study", "garden", "workshop", "bedroom", "office")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip

_STARTS = (
    "b", "br", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "kl", "l", "m", "n", "p", "pr", "qu",
    "r", "s", "sh", "st", "t", "tr", "v", "w", "y", "z",
)  # fmt: skip
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "oo", "ou")
_ENDS = ("", "", "l", "m", "n", "r", "s", "t", "ck", "nd", "rk", "st", "th", "x")


def word(rng: Random, syllables: int = 0) -> str:
    """An invented word, pronounceable and lower-case."""
    count = syllables or rng.randint(2, 3)
    parts = (rng.choice(_STARTS) + rng.choice(_VOWELS) for _ in range(count))
    return "".join(parts) + rng.choice(_ENDS)


def name(rng: Random) -> str:
    """A person: known or invented."""
    return rng.choice(PEOPLE) if rng.random() < 0.5 else word(rng).capitalize()


def place(rng: Random) -> str:
    """An invented place that is not one of the world's."""
    return word(rng).capitalize()


def phrase(rng: Random) -> str:
    """Two to five words, as a title or a note."""
    known = (*THINGS, *COLOURS, *ANIMALS, *ROOMS)
    words = (
        rng.choice(known) if rng.random() < 0.7 else word(rng) for _ in range(rng.randint(2, 5))
    )
    return " ".join(words)


def and_list(items: list[str]) -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
