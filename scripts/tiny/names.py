"""Words to fill templates with: given names, things, invented words that exist nowhere, and things made of them."""

from __future__ import annotations

from random import Random
from string import ascii_lowercase, ascii_uppercase

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
# What those do not have, for practice: with it most of what a person types has pieces that were copied before.
_MORE_STARTS = (
    "",
    "bl",
    "c",
    "ch",
    "cl",
    "cr",
    "gl",
    "ph",
    "pl",
    "sc",
    "sl",
    "sm",
    "sn",
    "sp",
    "sw",
    "th",
    "tw",
    "wh",
    "x",
)
_MORE_VOWELS = ("y", "ie", "ee", "au", "ia", "io", "ue")
_MORE_ENDS = (
    "b",
    "c",
    "ch",
    "d",
    "f",
    "g",
    "k",
    "p",
    "ng",
    "ll",
    "ss",
    "nt",
    "rd",
    "er",
    "en",
    "on",
    "ly",
    "tion",
    "land",
)
_COMMON_TEXT = (
    "a about after again all any are at back bad be before big bring buy call can car city clean close cold come day dear "
    "do door down early eat every far fast find first for free from full get give go good great group have hello help her here "
    "him home hot house how i in is it keep kind know last late learn left letter like list little long look lunch make meet "
    "meeting message money more morning my need never new next night no noon not now of off old on open or our out over paper "
    "party people play please put ready red report right road room school see send she short show slow small some song soon "
    "stay stop street sun take talk tea team tell test thank that the them then there they this time to today tomorrow too "
    "town train trip two under until up very wait walk want warm water we week well were what when where white who why will "
    "with word work write year yes you your"
)
_COMMON = tuple(_COMMON_TEXT.split())
_ACCENTED = {
    "a": "áàâãäå",
    "c": "ç",
    "e": "éèêë",
    "i": "íï",
    "n": "ñ",
    "o": "óôöø",
    "s": "ß",
    "u": "úü",
}
_SIGNS = "$%&()*+,-./:;<=>?@[]^_{|}~!#€§°'"
_SCRIPTS = (
    (0x391, 0x3C9),
    (0x410, 0x44F),
    (0x5D0, 0x5EA),
    (0x3041, 0x3096),
    (0x4E00, 0x9FA5),
    (0x1F600, 0x1F64F),
)
_SUFFIXES = ("txt", "json", "py", "md", "csv", "pdf", "log", "png", "html", "yaml")


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


def wide_word(rng: Random, syllables: int = 0) -> str:
    """An invented word of more sounds, lower-case; now and then letters in no order at all."""
    if rng.random() < 0.1:
        return "".join(rng.choices(ascii_lowercase, k=rng.randint(2, 7)))
    starts, vowels = (*_STARTS, *_MORE_STARTS), (*_VOWELS, *_MORE_VOWELS)
    count = syllables or rng.randint(1, 4)
    parts = (rng.choice(starts) + rng.choice(vowels) for _ in range(count))
    made = "".join(parts) + rng.choice((*_ENDS, *_MORE_ENDS))
    if rng.random() < 0.03:
        made = "".join(rng.choice(letter * 6 + _ACCENTED.get(letter, "")) for letter in made)
    return made


def proper(rng: Random) -> str:
    """A name of one or two words, known or invented."""
    first = rng.choice(PEOPLE) if rng.random() < 0.2 else wide_word(rng).capitalize()
    return first if rng.random() < 0.7 else f"{first} {wide_word(rng).capitalize()}"


def code(rng: Random) -> str:
    """An identifier: letters and digits, with hyphens or without."""
    digits = str(rng.randint(1, 10 ** rng.randint(1, 6)))
    letters = "".join(rng.choices(ascii_uppercase, k=rng.randint(1, 4)))
    return rng.choice((
        f"{word(rng)}-{digits}", f"{wide_word(rng)}-{digits}", f"{letters}-{digits}", f"{letters}{digits}",
        f"{wide_word(rng)}{digits}", f"{letters}-{digits}-{rng.choice(ascii_lowercase)}",
        f"{rng.randint(0, 9)}.{rng.randint(0, 30)}.{rng.randint(0, 9)}", f"#{digits}",
        f"{wide_word(rng)}_{wide_word(rng)}", f"{wide_word(rng)}-{wide_word(rng)}",
        f"20{rng.randint(10, 39)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
    ))  # fmt: skip


def file_name(rng: Random) -> str:
    """A file, sometimes with its folders."""
    folders = "".join(f"{wide_word(rng)}/" for _ in range(rng.choice((0, 0, 1, 2))))
    start = rng.choice(("", "", "/", "./")) if folders else ""
    stem = rng.choice(
        (wide_word(rng), f"{wide_word(rng)}_{rng.randint(1, 99)}", f"{word(rng)}-{word(rng)}")
    )
    return f"{start}{folders}{stem}.{rng.choice(_SUFFIXES)}"


def address(rng: Random) -> str:
    """As e-mail has them."""
    end = rng.choice(("com", "org", "net", "example", "io"))
    user = wide_word(rng) if rng.random() < 0.6 else f"{wide_word(rng)}.{wide_word(rng)}"
    return f"{user}@{wide_word(rng)}.{end}"


def title(rng: Random) -> str:
    """Two to four words, each with a capital letter, known or invented."""
    known = (*THINGS, *COLOURS, *ANIMALS, *ROOMS)
    words = (
        rng.choice(known) if rng.random() < 0.5 else wide_word(rng)
        for _ in range(rng.randint(2, 4))
    )
    return " ".join(one.capitalize() for one in words)


def prose(rng: Random) -> str:
    """Two to seven common words in no order, as a message or a note."""
    said = " ".join(rng.choice(_COMMON) for _ in range(rng.randint(2, 7)))
    return said.capitalize() if rng.random() < 0.5 else said


def common(rng: Random) -> str:
    """One common word."""
    one = rng.choice((*_COMMON, *THINGS, *COLOURS, *ANIMALS, *ROOMS, *DAYS, *MONTHS))
    return one.capitalize() if rng.random() < 0.2 else one


def signs(rng: Random) -> str:
    """Words with signs between them: sums of money, links, commands; rarely another script."""
    one, two, digits = wide_word(rng), wide_word(rng), rng.randint(0, 9999)
    if rng.random() < 0.1:
        first, last = rng.choice(_SCRIPTS)
        return "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 5)))
    return rng.choice((
        f"${digits}", f"{digits}%", f"{digits} €", f"https://{one}.com/{two}?id={digits}", f"http://{one}.org/{two}",
        f"{one}({two})", f"{one}{rng.choice(_SIGNS)}{two}", f"{one} {rng.choice(_SIGNS)} {digits}", f"{one} -{two[0]} {digits}",
        f"({one})", f"[{one}, {two}]", f"{one}: {digits}", f"{one} & {two}", f"{one}!", f"~/{one}",
    ))  # fmt: skip


def text(rng: Random) -> str:
    """Anything that may have to be copied as it stands."""
    makers = (
        wide_word,
        word,
        proper,
        place,
        code,
        file_name,
        address,
        title,
        phrase,
        prose,
        common,
        signs,
    )
    return rng.choices(makers, (2, 2, 2, 1, 4, 1, 1, 1, 1, 2, 2, 1))[0](rng)


def and_list(items: list[str]) -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
