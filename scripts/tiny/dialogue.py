"""Small talk, what was said before, and what cannot be known."""

from __future__ import annotations

from random import Random

from .names import ANIMALS, COLOURS, and_list, name, phrase, place, word
from .samples import Sample, assistant, either, question, user

ABOUT = (
    "I am the tiny model that comes with glm53ctl. I know a small invented world, some arithmetic, "
    "the calendar and how to call tools."
)
TALK = (
    ("greeting", ("Hello", "Hello!", "Hi", "Hi there", "Hey", "Good morning", "Good evening", "Hello, how are you?"),
     "A greeting. I greet back.", "Hello! How can I help you?"),
    ("thanks", ("Thanks", "Thank you", "Thank you!", "Thanks a lot", "Many thanks", "Great, thank you."),
     "The user thanks me. I answer politely.", "You are welcome!"),
    ("farewell", ("Goodbye", "Bye", "See you", "Good night", "Bye, see you tomorrow", "That is all."),
     "The user leaves. I say goodbye.", "Goodbye!"),
    ("well", ("How are you?", "How do you do?", "Are you well?", "How is it going?"),
     "A polite question. I answer and offer help.", "I am well, thank you. How can I help you?"),
    ("about", ("Who are you?", "What are you?", "What can you do?", "Tell me about yourself.", "What is your name?",
               "Are you a real model?", "What do you know?", "How can you help me?"),
     "The user asks about me. I say what I am.", ABOUT),
    ("world", ("What is the invented world?", "Tell me about your world.", "Which islands do you know?",
               "What islands are there?", "Name the islands."),
     "The user asks about the islands. There are five.",
     "There are five islands: Northholm, Suncrest, Mistral, Eastfall and Westreach."),
    ("sorry", ("You are wrong.", "That is not right.", "I do not believe that."),
     "The user disagrees. I stay polite.", "I am sorry. Please ask again and I will check."),
)  # fmt: skip
_UNKNOWABLE = (
    "What will the weather be in {place} tomorrow?", "What did {name} eat yesterday?",
    "How tall is {name}?", "What is the phone number of {name}?", "Who wrote {title}?",
    "What is the price of {title}?", "What does the word {word} mean?", "Where does {name} live?",
    "How old is {name}?", "What am I thinking of?", "What is {name}'s favourite colour?",
)  # fmt: skip


def talk(rng: Random) -> Sample:
    kind, ways, thought, said = rng.choice(TALK)
    asked = rng.choice(ways)
    return question("talk", f"{kind}/{asked}", asked, thought, said, said.rstrip("!."))


def unknowable(rng: Random) -> Sample:
    template = rng.choice(_UNKNOWABLE)
    asked = template.format(place=place(rng), name=name(rng), title=phrase(rng), word=word(rng))
    thought = "Nobody told me this and I have no tool for it. I must not guess."
    return question("unknown", asked, asked, thought, "I don't know that.", "I don't know")


def remembered(rng: Random) -> Sample:
    """Something the user said earlier, asked for after one or two other turns."""
    kind = rng.choice(("name", "colour", "animal", "number", "note"))
    value = {
        "name": name(rng), "colour": rng.choice(COLOURS), "animal": word(rng).capitalize(),
        "number": str(rng.randint(10, 9999)), "note": phrase(rng),
    }[kind]  # fmt: skip
    beast = rng.choice(ANIMALS)
    told, reply, asked, said = {
        "name": (f"My name is {value}.", f"Nice to meet you, {value}.", "What is my name?", f"Your name is {value}."),
        "colour": (f"My favourite colour is {value}.", f"I will remember {value}.",
                   "What is my favourite colour?", f"Your favourite colour is {value}."),
        "animal": (f"I have a {beast} called {value}.", f"{value} is a fine name.",
                   f"What is my {beast} called?", f"Your {beast} is called {value}."),
        "number": (f"Remember the number {value}.", f"I will remember {value}.",
                   "Which number did I give you?", f"The number is {value}."),
        "note": (f"Note this: {value}.", "Noted.", "What did I ask you to note?", f"You asked me to note: {value}."),
    }[kind]  # fmt: skip
    between = rng.sample(TALK[:5], rng.randint(0, 2))
    messages = [user(told), assistant(reply)]
    for _, ways, _, answer in between:
        messages += [user(rng.choice(ways)), assistant(answer)]
    thought = f"The user told me earlier: {told} So the answer is {value}."
    messages += [user(asked), assistant(said, thought)]
    return Sample("reference", f"reference:{kind}/{value}/{beast}", tuple(messages), value)


def greeted(rng: Random) -> Sample:
    """The user's name, used at once."""
    who = name(rng)
    asked = either(rng, f"Hello, my name is {who}.", f"I am {who}.", f"Hi! {who} here.")
    thought = f"The user is called {who}. I greet them by name."
    return question("talk", f"name/{who}", asked, thought, f"Nice to meet you, {who}.", who)


def chosen(rng: Random) -> Sample:
    """Several things said; one of them asked for."""
    people = {name(rng): word(rng).capitalize() for _ in range(3)}
    told = and_list([f"{who} lives in {where}" for who, where in people.items()])
    who = rng.choice(list(people))
    asked = f"{told}. Where does {who} live?"
    thought = f"The text says that {who} lives in {people[who]}."
    said = f"{who} lives in {people[who]}."
    return question("reading", asked, asked, thought, said, people[who])


MAKERS = ((talk, 3), (greeted, 1), (chosen, 2))
