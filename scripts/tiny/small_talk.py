"""Practice in small talk: many more ways to say what dialogue.py answers, and what no tiny model can do.

None of these sayings is one that the suite may ask; a test compares them without case and punctuation.
"""

from __future__ import annotations

from itertools import product
from random import Random

from .dialogue import TALK
from .names import ANIMALS, PEOPLE, THINGS, name, phrase, proper, title, wide_word
from .samples import Sample, assistant, either, question, split_of, user

LIMITS = (
    "I am a very small model and cannot do that. I can do sums, the facts of a small world, clocks, units, "
    "lists, JSON and tools."
)
_MORE: dict[str, tuple[str, ...]] = {
    "greeting": (
        "Good day", "Good afternoon", "Hiya", "Greetings", "Hello there", "Hey there", "Hi, how are you?", "Howdy",
        "Hello again", "Welcome back", "Morning!", "Evening!", "Hello hello", "Hey, good to see you", "Hello world",
        "Hi again", "Hello you", "A good morning to you", "Hello, good morning", "Hi, good morning", "Ahoy", "Yo",
        "Good to meet you", "Nice to meet you", "Is anyone there?", "Are you there?", "Hello?", "Hello, anyone?",
        "Good afternoon to you", "Good evening to you", "Hello friend", "Hi friend", "Hello model", "Hi bot", "Test", "ping",
    ),
    "thanks": (
        "Thank you so much", "That was helpful, thanks.", "Cheers", "Much obliged", "Perfect, thank you.", "Thank you very much",
        "Thanks, that helps.", "I thank you.", "Very kind, thank you.", "Lovely, thanks.", "Thanks so much", "Okay, thanks",
        "Thanks again", "Thanks for that", "Thanks for your help", "Thank you for the answer", "ok thanks", "Great, thanks",
        "Thanks, friend", "Good, thanks", "Thanks very much", "Well done", "Good job", "Great", "Nice", "Perfect", "Cool, thanks",
    ),
    "farewell": (
        "Goodbye for now", "Bye bye", "Take care", "Farewell", "I have to go now.", "I must leave.", "So long",
        "Have a good evening.", "That was all.", "Have a nice day.", "Good bye", "I am leaving.", "Sleep well", "Ciao",
        "Have a good night", "Bye then", "Bye for now", "Okay, bye", "I am done for today.", "We are done.", "That is it.",
    ),
    "well": (
        "How do you feel?", "How are things?", "Do you feel well?", "How have you been?", "Is all well with you?", "How goes it?",
        "Are you all right?", "What's up?", "How is your day?", "Are you okay?", "Are you fine?", "Are you happy?",
        "How are you getting on?", "How do things go?", "How is life?", "How do you do, my friend?", "And you, how are you?",
        "I hope you are well.", "How do you like it here?", "How is everything?", "How is your morning?",
    ),
    "about": (
        "What is this?", "Which model are you?", "What kind of model are you?", "Introduce yourself.", "What are you good at?",
        "Do you have a name?", "Who am I talking to?", "What do you do?", "Help", "help me", "I need help", "What can I ask you?",
        "What can I ask?", "What should I ask you?", "How do you work?", "What is this model?", "Tell me who you are.",
        "Tell me what you can do.", "Tell me your name.", "What are you called?", "What should I call you?", "So who are you?",
        "May I know your name?", "And what is your name then?", "What is your full name?", "What is your real name?", "Say your name",
        "Give me your name.", "What name do you have?", "Is your name GLM?", "Your name?", "What was your name again?", "What's your name?", "Do you know your name?", "What is your purpose?", "What is your job?",
        "Are you a robot?", "Are you human?", "Are you a person?", "Are you an AI?", "Are you GLM?", "Who made you?", "How big are you?",
        "What can you help me with?", "What can you do for me?", "What are your skills?", "Show me what you can do.", "Can you help me?",
        "What is glm53ctl?", "Which version are you?", "How old are you?", "Are you clever?", "What do you know about?", "?",
    ),
    "world": (
        "How many islands are there?", "Tell me the islands.", "What are the islands called?", "Which islands are there?",
        "Tell me about the islands.", "Where do you live?", "Tell me about the world.", "What is your world?", "What world is this?",
        "What islands do you know?", "What are the names of the islands?", "Do you know any islands?", "Which world do you know?",
    ),
    "sorry": (
        "That is wrong.", "No, that is not true.", "You made a mistake.", "I think you are wrong.", "This cannot be right.",
        "Are you sure? I am not.", "Wrong", "No", "That is false.", "This is wrong.", "You are mistaken.", "Not true.",
        "I do not think so.", "That is nonsense.", "Nonsense", "Are you sure?", "Really?", "Check that again.",
    ),
}  # fmt: skip
_WHEN = ("later", "soon", "tomorrow", "then", "around", "again soon", "on Monday", "on Friday", "next week", "tonight",
         "in the morning", "at noon", "next time", "there", "in a while", "some day", "after lunch")  # fmt: skip
_PATTERNS: tuple[tuple[str, str, tuple[tuple[str, ...], ...]], ...] = (
    ("farewell", "{}{}{}", (("See you ", "Bye, see you ", "I will see you ", "Talk to you ", "Goodbye, see you "), _WHEN, ("", "!"))),
    ("farewell", "Until {}", (("later", "tomorrow", "next time", "then", "Monday", "we meet again", "next week"),)),
    ("well", "{} {}{}", (("How are you", "How are you doing", "How do you do", "How do you feel", "How is it going", "Are you well"),
                         ("today", "this morning", "now", "there", "then", "these days", "tonight"), ("?", ""))),
    ("world", "{} {}{}", (("Name", "List", "Show me", "Tell me", "Give me", "Can you name", "Say"),
                          ("all islands", "all the islands", "your islands", "the five islands", "all five islands",
                           "the islands you know", "the islands of your world"), ("", ".", ", please."))),
    ("greeting", "{} {}", (("Hello", "Hi", "Hey", "Good day", "Good afternoon", "Good evening"),
                           ("to you", "again", "there", "everyone", "all", "my friend", "dear model", "from me"))),
    ("thanks", "{} {}", (("Thanks", "Thank you", "Many thanks"),
                         ("for the help", "for your answer", "for that", "once more", "again", "indeed", "my friend", "for everything"))),
    ("about", "{} {}", (("What", "Tell me what", "Say what"), ("you are", "you can do", "you know", "your name is", "you are good at"))),
)  # fmt: skip
_IMPOSSIBLE = (
    "Tell me a joke", "Write a poem", "Write a poem about {thing}.", "Tell me a story", "Write a story about a {animal}.",
    "Sing a song", "Write code", "Write a program that sorts {thing}.", "Write a Python function", "Draw a {animal}.",
    "Translate {title} into French.", "Write an essay about {thing}.", "Summarise this text: {phrase}", "Play chess with me.",
    "Make a picture of {thing}.", "Write a letter to {name}.", "Write me a song about {thing}", "Let us play a game.",
    "Give me a recipe for {thing}.", "What is the news today?", "Speak German", "Say something in French.", "Plan my holiday.",
    "tell me something funny", "Do you know a joke?", "write a haiku", "Write a speech for {name}.", "Explain physics to me.",
    "Prove a theorem.", "Give me advice.", "Solve x + 3 = {word}.", "Teach me {word}.", "Write a poem for {name}", "Be a pirate.",
    "Write a limerick.", "Tell me a fairy tale.", "Compose a song.", "Write HTML for a page about {thing}.", "Fix my code.",
)  # fmt: skip
_UNKNOWN = (
    "Who is {name}?", "What is {word}?", "When was {name} born?", "Who invented {thing}?", "Why is the {thing} {word}?",
    "What does {name} do?", "Who won the game?", "How far is it to the moon?", "What is the meaning of life?",
    "What is {title}?", "How much does a {animal} weigh?", "Who painted {title}?", "What is the weight of {name}?",
    "Which book did {name} write?", "What did I have for lunch?", "Where are my {thing}?", "Where is {name} now?",
    "When does {name} come home?", "What is {name}'s address?", "Do you know {name}?", "Why is the sky blue?",
    "How do I make {thing}?", "What is the best {word}?", "Does {name} like {thing}?", "Who is the tallest of all people?",
    "What is the name of my {animal}?", "What is my favourite colour?", "What is my name?", "Which number did I give you?",
    "What is the date today?", "What day is it today?", "What time is it?", "Where am I?", "How is the weather?",
    "What will I do tomorrow?", "How deep is the sea?", "What is the fastest {animal}?", "What is a {word}?", "what is a {animal}",
)  # fmt: skip


def sayings() -> dict[str, tuple[str, ...]]:
    """Every saying of each kind, without those that are held out."""
    found = {kind: list(ways) for kind, ways in _MORE.items()}
    for kind, pattern, slots in _PATTERNS:
        found[kind] += [pattern.format(*words) for words in product(*slots)]
    known = {bare(way) for _, ways, *_ in TALK for way in ways}
    return {
        kind: tuple(way for way in dict.fromkeys(ways) if bare(way) not in known)
        for kind, ways in found.items()
    }


def bare(saying: str) -> str:
    """A saying without case, punctuation and `please`."""
    words = "".join(c if c.isalpha() or c == "'" else " " for c in saying.lower()).split()
    return " ".join(word for word in words if word != "please")


_SAYINGS = sayings()


def more_talk(rng: Random) -> Sample:
    """Small talk in more words, alone or after other talk."""
    kind, _, thought, said = rng.choice(TALK)
    asked = rng.choice(_SAYINGS[kind])
    made = question("talk", f"{kind}/{asked}", asked, thought, said, said.rstrip("!."))
    if rng.random() < 0.7:
        return made
    before, ways, _, answer = rng.choice(TALK)
    way = rng.choice([way for way in ways if split_of(f"talk:{before}/{way}") == "train"])
    history = (user(way), assistant(answer))
    return Sample(made.task, made.key, (*history, *made.messages), made.answer)


def impossible(rng: Random) -> Sample:
    """What it is asked for and cannot do: it says so, and what it can do."""
    asked = _filled(rng, rng.choice(_IMPOSSIBLE))
    thought = "I am too small for this. I say what I can do."
    return question("talk", f"impossible/{asked}", asked, thought, LIMITS, "cannot do that")


def more_unknown(rng: Random) -> Sample:
    """What cannot be known, in more words."""
    asked = _filled(rng, rng.choice(_UNKNOWN))
    thought = "Nobody told me this and I have no tool for it. I must not guess."
    return question("unknown", asked, asked, thought, "I don't know that.", "I don't know")


def _filled(rng: Random, template: str) -> str:
    who = either(rng, rng.choice(PEOPLE), name(rng), proper(rng))
    return template.format(
        name=who, thing=rng.choice(THINGS), animal=rng.choice(ANIMALS), word=wide_word(rng), title=title(rng),
        phrase=phrase(rng),
    )  # fmt: skip


PRACTICE = ((more_talk, 5), (impossible, 2), (more_unknown, 2))
