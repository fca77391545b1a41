"""Facts of an invented archipelago, and the questions about them.

The facts themselves are all trained on, since nothing else could teach them; held out are pairs of a
fact and a way to ask for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from .names import place
from .samples import Sample, assistant, question, user


@dataclass(frozen=True, slots=True)
class Town:
    name: str
    island: str
    river: str
    mayor: str
    food: str
    trade: str
    founded: str


_ROWS = """
Almery|Northholm|Tarn|Orla Finch|plum bread|glass|1204
Brindle|Northholm|Osk|Tobin Marsh|oat soup|rope|1311
Caldow|Northholm|Wend|Ilse Karo|smoked eel|clocks|1187
Dunmere|Northholm|Lisk|Pell Aston|nut cake|paper|1420
Estwick|Northholm|Marl|Runa Vey|barley pie|boats|1256
Farrow|Suncrest|Quill|Hale Dorn|lemon rice|lamps|1502
Gantry|Suncrest|Brae|Mina Sorrel|fig jam|tiles|1399
Hollin|Suncrest|Sedge|Otto Wren|bean stew|drums|1275
Irenby|Suncrest|Coil|Suri Lund|honey toast|silk|1610
Juniper|Suncrest|Amble|Kester Bly|corn mash|maps|1333
Kelding|Mistral|Fenn|Dara Holt|fish cakes|nets|1148
Larkspur|Mistral|Ister|Benno Tull|pear tart|bells|1477
Morrow|Mistral|Vane|Lotte Irving|onion broth|salt|1222
Nettle|Mistral|Pike|Arvid Sand|cheese buns|wool|1366
Oakham|Mistral|Rill|Selma Quist|apple dumplings|chairs|1541
Pendry|Eastfall|Dray|Jory Elm|mushroom pie|ink|1290
Quarrel|Eastfall|Heron|Nadia Crest|garlic flatbread|bricks|1455
Rushden|Eastfall|Keel|Emil Thorne|pepper ham|saddles|1199
Sallow|Eastfall|Loam|Wanda Frey|berry pudding|paint|1588
Tamsin|Eastfall|Moss|Casper Dale|potato salad|candles|1244
Umber|Westreach|Nook|Freya Odd|crab noodles|coins|1633
Velling|Westreach|Otter|Magnus Pine|walnut rolls|flutes|1301
Wistow|Westreach|Plume|Tilda Gray|sour cabbage|leather|1430
Yarrow|Westreach|Rush|Viggo Stone|milk porridge|kites|1360
"""
TOWNS = tuple(Town(*line.split("|")) for line in _ROWS.split("\n") if line)
BY_NAME = {town.name: town for town in TOWNS}

# Of each attribute: how a sentence states it, and ways to ask for it.
STATED = {
    "island": "{town} lies on {value}",
    "river": "the river of {town} is the {value}",
    "mayor": "the mayor of {town} is {value}",
    "food": "{town} is known for its {value}",
    "trade": "{town} trades in {value}",
    "founded": "{town} was founded in {value}",
}
_ASKED = {
    "island": (
        "Which island is {town} on?", "On which island does {town} lie?", "Where is {town}?",
        "What island does {town} belong to?", "Where can I find {town}?",
    ),
    "river": (
        "Which river flows through {town}?", "What is the river of {town} called?",
        "Name the river of {town}.", "What river does {town} have?", "Which river is {town} on?",
    ),
    "mayor": (
        "Who is the mayor of {town}?", "What is the name of the mayor of {town}?",
        "Who runs {town}?", "Name the mayor of {town}.", "Who governs {town}?",
    ),
    "food": (
        "What food is {town} known for?", "What do people eat in {town}?", "What should I eat in {town}?",
        "Which dish is typical of {town}?", "What is the famous dish of {town}?",
    ),
    "trade": (
        "What does {town} trade in?", "What is made in {town}?", "What goods does {town} sell?",
        "Which trade is {town} known for?", "What does {town} export?",
    ),
    "founded": (
        "When was {town} founded?", "In which year was {town} founded?", "How old is {town}?",
        "What year does {town} date from?", "When did people found {town}?",
    ),
}  # fmt: skip
_REVERSED = {
    "mayor": ("Which town has {value} as its mayor?", "Where is {value} mayor?"),
    "food": ("Which town is known for its {value}?", "Where is {value} the typical dish?"),
    "trade": ("Which town trades in {value}?", "Where do {value} come from?"),
    "river": ("Which town lies on the {value}?", "Through which town does the {value} flow?"),
}
_OPENINGS = ("", "", "", "Please tell me: ", "I have a question. ", "Quick one: ", "Hello! ")


def fact(rng: Random) -> Sample:
    """An attribute of a town."""
    town, attribute = rng.choice(TOWNS), rng.choice(tuple(STATED))
    way = rng.randrange(len(_ASKED[attribute]))
    asked = _ASKED[attribute][way].format(town=town.name)
    thought = f"This is about {town.name}. I recall that {stated(town, attribute)}."
    value = getattr(town, attribute)
    said = sentence(stated(town, attribute))
    key = f"{town.name}/{attribute}/{way}"
    return question("fact", key, rng.choice(_OPENINGS) + asked, thought, said, value)


def reverse(rng: Random) -> Sample:
    """The town of an attribute."""
    town, attribute = rng.choice(TOWNS), rng.choice(tuple(_REVERSED))
    way = rng.randrange(len(_REVERSED[attribute]))
    asked = _REVERSED[attribute][way].format(value=getattr(town, attribute))
    thought = f"Which town is it? I recall that {stated(town, attribute)}."
    said = f"It is {town.name}: {stated(town, attribute)}."
    key = f"reverse/{town.name}/{attribute}/{way}"
    return question("fact", key, rng.choice(_OPENINGS) + asked, thought, said, town.name)


def follow_up(rng: Random) -> Sample:
    """A second question that says `it` or `there`."""
    town = rng.choice(TOWNS)
    first, second = rng.sample(tuple(STATED), 2)
    words = {
        "island": "And on which island is it?", "river": "And which river flows there?",
        "mayor": "And who is the mayor there?", "food": "And what do they eat there?",
        "trade": "And what do they trade in?", "founded": "And when was it founded?",
    }  # fmt: skip
    way = rng.randrange(len(_ASKED[first]))
    value = getattr(town, second)
    messages = (
        user(_ASKED[first][way].format(town=town.name)),
        assistant(sentence(stated(town, first))),
        user(words[second]),
        assistant(
            sentence(stated(town, second)),
            f"We speak of {town.name}. I recall that {stated(town, second)}.",
        ),
    )
    key = f"reference:{town.name}/{first}/{second}/{way}"
    mentions = (f"fact:{town.name}/{first}/{way}",)
    return Sample("reference", key, messages, value, mentions=mentions)


def unknown_place(rng: Random) -> Sample:
    """A place that is not in the world."""
    where = place(rng)
    attribute = rng.choice(tuple(_ASKED))
    way = rng.randrange(len(_ASKED[attribute]))
    asked = _ASKED[attribute][way].format(town=where)
    thought = f"This is about {where}. I know no place called {where}."
    said = f"I don't know a place called {where}."
    return question("unknown", f"{where}/{attribute}", asked, thought, said, "I don't know")


def stated(town: Town, attribute: str) -> str:
    """The fact as a clause."""
    return STATED[attribute].format(town=town.name, value=getattr(town, attribute))


def sentence(clause: str) -> str:
    return clause[0].upper() + clause[1:] + "."
