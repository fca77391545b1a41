"""Facts of an invented archipelago, and the questions about them.

The facts themselves are all trained on, since nothing else could teach them; held out are pairs of a
fact and a way to ask for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from .names import and_list, place, proper
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


_ISLANDS = tuple(dict.fromkeys(town.island for town in TOWNS))
_NUMBERS = ("one", "two", "three", "four", "five")


def listed(rng: Random) -> Sample:
    """Practice: towns by name, so many or those of an island."""
    island = rng.choice(_ISLANDS)
    towns = [town.name for town in TOWNS if town.island == island]
    if rng.random() < 0.4:
        count = rng.randint(2, 5)
        said = and_list([town.name for town in TOWNS[:count]])
        asked = rng.choice(
            ("List {} towns.", "Name {} towns", "Give me {} towns.", "list {} towns", "Tell me {} towns.", "{} towns please")
        ).format(_NUMBERS[count - 1])  # fmt: skip
        thought, answer = f"I name {_NUMBERS[count - 1]} towns that I know.", said
    elif rng.random() < 0.3:
        asked = rng.choice(
            (
                "How many towns are on {}?",
                "How many towns does {} have?",
                "How many towns lie on {}?",
            )
        ).format(island)
        thought = f"On {island} lie {and_list(towns)}. That is {len(towns)}."
        said, answer = f"There are {len(towns)} towns on {island}.", str(len(towns))
    else:
        asked = rng.choice(
            ("Which towns are on {}?", "List the towns of {}.", "Name the towns on {}.", "What towns lie on {}?",
             "Tell me the towns of {}.", "Tell me about {}.", "What is on {}?", "Where is {}?", "What is {}?")
        ).format(island)  # fmt: skip
        thought = f"This is about the island {island}. I recall its towns."
        said = f"The towns on {island} are {and_list(towns)}."
        answer = towns[-1]
    return question("fact", f"listed/{asked}", asked, thought, said, answer)


def told_about(rng: Random) -> Sample:
    """Practice: several facts of a town, or whether something is so."""
    town = rng.choice(TOWNS)
    if rng.random() < 0.4:
        other = rng.choice(TOWNS)
        attribute = rng.choice(tuple(STATED))
        claimed = getattr(other if rng.random() < 0.5 else town, attribute)
        right = claimed == getattr(town, attribute)
        clause = STATED[attribute].format(town=town.name, value=claimed)
        asked = rng.choice(
            ("Is it true that {}?", "Is it right that {}?", "Am I right that {}?")
        ).format(clause)
        thought = f"This is about {town.name}. I recall that {stated(town, attribute)}."
        said = f"{'Yes' if right else 'No'}, {stated(town, attribute)}."
        return question("fact", f"so/{clause}", asked, thought, said, getattr(town, attribute))
    asked = rng.choice(
        ("Tell me about {}.", "What do you know about {}?", "Describe {}.", "What is {}?", "Do you know {}?", "tell me about {}")
    ).format(town.name)  # fmt: skip
    clauses = [stated(town, attribute) for attribute in ("island", "mayor", "food")]
    thought = f"This is about {town.name}. I recall some facts."
    said = sentence(and_list(clauses))
    return question("fact", f"about/{asked}", asked, thought, said, town.name)


def elsewhere(rng: Random) -> Sample:
    """Practice: a place of the real world or of none, in more ways."""
    where = rng.choice(_REAL) if rng.random() < 0.4 else proper(rng)
    asked = rng.choice(
        ("What is the capital of {}?", "Where is {}?", "Tell me about {}.", "Who rules {}?",
         "Which language do they speak in {}?", "Is {} far from here?", "What is the largest city of {}?", "Who is the president of {}?",
         "How do I get to {}?", "what is the capital of {}", "Is {} an island?", "Which sea is near {}?", "Have you been to {}?")
    ).format(where)  # fmt: skip
    thought = f"This is about {where}. I know no place called {where}."
    return question(
        "unknown", asked, asked, thought, f"I don't know a place called {where}.", "I don't know"
    )


_REAL = (
    "France", "Germany", "Spain", "Italy", "England", "Japan", "China", "India", "Brazil", "Canada", "Egypt", "Kenya",
    "Poland", "Sweden", "Norway", "Greece", "Turkey", "Mexico", "Peru", "Chile", "Paris", "London", "Berlin", "Rome",
    "Madrid", "Tokyo", "Vienna", "Oslo", "New York", "Europe", "Africa", "America", "Australia", "Hamburg", "Austria",
)  # fmt: skip
PRACTICE = ((listed, 2), (told_about, 2), (elsewhere, 2))
