"""Practice requests: tools of every name, shape and wording, whose arguments and results must be copied.

None of it is asked in the suite. Invented tools have arguments of every JSON type, some of them optional;
familiar ones are those that people try first, under the names that they give them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from . import names
from .tools import Declared, Request

_VERBS = (
    "add", "remove", "get", "fetch", "list", "search", "show", "send", "set", "save", "load", "print", "play",
    "rent", "buy", "sell", "cancel", "close", "lock", "unlock", "clean", "translate", "convert", "measure",
    "scan", "copy", "rename", "sort", "upload", "share", "invite", "approve", "schedule", "ship", "track",
    "cook", "paint", "plant", "repair", "charge", "book", "find", "open", "check", "update", "create", "delete",
)  # fmt: skip
_NOUNS = (
    "flight", "hotel", "order", "invoice", "customer", "email", "note", "event", "product", "image", "meeting",
    "car", "bike", "book", "contact", "message", "folder", "server", "database", "bill", "address", "device",
    "window", "stock", "ticket", "file", "table", "room", "song", "parcel", "user", "task", "report", "alarm",
)  # fmt: skip
_KEYS = (
    "name", "owner", "place", "title", "code", "label", "target", "source", "note", "part", "id", "date", "user_id",
    "path", "email", "query", "subject", "location", "from", "to", "size", "amount", "count", "limit", "unit",
)  # fmt: skip
_FIELDS = (
    "status", "value", "number", "state", "id", "price", "name", "result", "total", "size", "owner", "code", "message",
)  # fmt: skip
_ASKED = (
    "Please {verb} a {noun}", "{verb} a {noun}", "Can you {verb} a {noun}", "I want to {verb} a {noun}",
    "{verb} the {noun}", "Could you {verb} the {noun}", "I need you to {verb} a {noun}", "Call {tool}",
    "Use {tool}", "{verb} {noun}", "Use the tool {tool}", "Run {tool}", "Let us {verb} the {noun}",
)  # fmt: skip
_SPOKEN = ("{} {}", "{} {}", "{} = {}", "{}: {}", '{} "{}"', "{} as {}")
_JOINED = (" and ", ", ", "; ")


def strange(rng: Random) -> Request:
    """A tool whose verb, noun and arguments are mostly invented words: all of it must be copied."""
    verb = rng.choice(_VERBS) if rng.random() < 0.5 else names.wide_word(rng, rng.randint(2, 3))
    noun = rng.choice(_NOUNS) if rng.random() < 0.5 else names.wide_word(rng, rng.randint(2, 4))
    tool_name = rng.choice(
        (f"{verb}_{noun}", f"{verb}_{noun}", f"{verb}{noun.capitalize()}", f"{noun}_{verb}", verb)
    )
    given = {_key(rng): _argument(rng) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4)))}
    properties = {key: schema for key, (schema, _) in given.items()}
    arguments = {key: value for key, (_, value) in given.items()}
    about = rng.choice(
        (f"{verb.capitalize()} a {noun}", f"{verb.capitalize()} one {noun}", noun, "")
    )
    tool = _declared(rng, tool_name, about, properties)
    asked = rng.choice(_ASKED).format(verb=verb, noun=noun, tool=tool_name)
    spoken = rng.choice(_SPOKEN)
    told = rng.choice(_JOINED).join(_told(spoken, key, value) for key, value in arguments.items())
    asked = (asked[0].upper() + asked[1:] if rng.random() < 0.8 else asked) + (
        f" with {told}." if told else "."
    )
    result, said, answer = _result(rng, noun)
    return Request(tool, asked, arguments, result, said, answer)


def _key(rng: Random) -> str:
    chance = rng.random()
    if chance < 0.7:
        return rng.choice(_KEYS)
    return names.word(rng) if chance < 0.85 else f"{rng.choice(_KEYS)}_{rng.choice(_KEYS)}"


def _argument(rng: Random) -> tuple[dict[str, Any], Any]:
    """A schema and a value of it: mostly strings, and every other type."""
    chance = rng.random()
    if chance < 0.8:
        return _scalar(rng)
    if chance < 0.9:
        whole = rng.random() < 0.4
        make: Callable[[Random], Any] = _whole if whole else names.text
        items = {"type": "integer" if whole else "string"}
        return {"type": "array", "items": items}, [make(rng) for _ in range(rng.randint(1, 3))]
    inner = {_key(rng): _scalar(rng) for _ in range(rng.randint(1, 2))}
    properties = {key: schema for key, (schema, _) in inner.items()}
    return {"type": "object", "properties": properties}, {
        key: value for key, (_, value) in inner.items()
    }


def _scalar(rng: Random) -> tuple[dict[str, Any], Any]:
    kind, make = rng.choices(
        (("string", names.text), ("integer", _whole), ("number", _decimal), ("boolean", _truth)), (8, 2, 1, 1)
    )[0]  # fmt: skip
    return {"type": kind}, make(rng)


def _whole(rng: Random) -> int:
    return rng.randint(0, 10 ** rng.randint(1, 5))


def _decimal(rng: Random) -> float:
    return rng.randint(1, 9999) / rng.choice((10, 100)) + 0.0


def _truth(rng: Random) -> bool:
    return rng.random() < 0.5


def _declared(rng: Random, name: str, about: str, properties: Mapping[str, Any]) -> Declared:
    """One in four has an argument that may be left out, and is."""
    schema: dict[str, Any] = {"type": "object", "properties": dict(properties)}
    if properties:
        schema["required"] = list(properties)
    if rng.random() < 0.25:
        schema["properties"].setdefault(rng.choice(_KEYS), _scalar(rng)[0])
    function = {"name": name, "description": about, "parameters": schema}
    return {"type": "function", "function": function}


def _told(spoken: str, key: str, value: Any) -> str:
    """An argument in the user's words."""
    if isinstance(value, Mapping):
        inner = " and ".join(f"{k} {_plain(v)}" for k, v in value.items())
        return f"{key} of {inner}"
    if isinstance(value, str):
        return spoken.format(key, value)
    return spoken.replace('"', "").format(key, _plain(value))


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return value if isinstance(value, str) else json.dumps(value)


def _result(rng: Random, noun: str) -> tuple[str, str, str]:
    """What the tool returns, how that is said, and what must be in it."""
    if rng.random() < 0.1:
        done = rng.choice(({"ok": True}, {"success": True}, {"status": "ok"}, {"done": True}))
        return json.dumps(done), "It is done.", "It is done"
    if rng.random() < 0.1:
        plain = names.text(rng)
        return plain, f"The answer is: {plain}", plain
    keys = rng.sample(_FIELDS, rng.choice((1, 1, 1, 2, 3)))
    fields = {key: names.text(rng) if rng.random() < 0.6 else _whole(rng) for key in keys}
    parts = [f"the {key} is {value}" for key, value in fields.items()]
    parts[0] = f"The {keys[0]} of the {noun} is {fields[keys[0]]}"
    return (
        json.dumps(fields, ensure_ascii=False),
        f"{names.and_list(parts)}.",
        str(fields[keys[-1]]),
    )


@dataclass(frozen=True, slots=True)
class Familiar:
    """A tool people try first. Braces in `asked` and `said` name arguments, by their first name, and results."""

    called: tuple[str, ...]
    takes: Mapping[str, tuple[tuple[str, ...], str, Callable[[Random], Any]]]
    asked: tuple[str, ...]
    gives: Mapping[str, tuple[tuple[str, ...], Callable[[Random], Any]]]
    said: str


_SKY = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "clear", "stormy", "warm", "cold")
_FAMILIAR = (
    Familiar(
        ("get_weather", "get_current_weather", "weather", "fetch_weather", "weather_now", "current_weather"),
        {"city": (("city", "location", "town", "place"), "string", names.proper)},
        ("What is the weather in {city}?", "What is the weather like in {city}?", "weather in {city}",
         "How is the weather in {city} today?", "What's the weather in {city}?", "Is it warm in {city}?",
         "Tell me the weather for {city}.", "Will I need an umbrella in {city}?"),
        {"sky": (("sky", "condition", "weather", "conditions"), lambda rng: rng.choice(_SKY)),
         "degrees": (("degrees", "temperature", "temp", "celsius"), lambda rng: rng.randint(-20, 42))},
        "It is {sky} in {city}, {degrees} degrees.",
    ),
    Familiar(
        ("search", "web_search", "search_web", "lookup", "find_page"),
        {"query": (("query", "q", "text", "keywords"), "string", names.text)},
        ("Search for {query}", "Search the web for {query}.", "Look up {query}.", "Find {query} on the web."),
        {"title": (("title", "page", "name"), names.title)},
        "I found {title}.",
    ),
    Familiar(
        ("read_file", "open_file", "cat", "get_file", "file_read"),
        {"path": (("path", "file", "filename", "name"), "string", names.file_name)},
        ("Read {path}", "What is in {path}?", "Show me the file {path}.", "Open {path} and tell me what it says."),
        {"text": (("text", "content", "contents"), names.phrase)},
        "The file says: {text}.",
    ),
    Familiar(
        ("send_email", "send_mail", "email", "write_email"),
        {"to": (("to", "address", "recipient"), "string", names.address),
         "subject": (("subject", "title", "about"), "string", names.title)},
        ("Send an e-mail to {to} about {subject}.", "Write to {to} with the subject {subject}.",
         "E-mail {to}, subject {subject}"),
        {"id": (("id", "number", "message_id"), names.code)},
        "I sent it to {to}. Its number is {id}.",
    ),
    Familiar(
        ("send_message", "notify", "post_message", "send_text"),
        {"to": (("to", "person", "user", "channel"), "string", names.proper),
         "text": (("text", "message", "body", "content"), "string", names.prose)},
        ("Tell {to}: {text}", "Send {to} this message: {text}", 'Send "{text}" to {to}.', "Write {to} that {text}"),
        {"id": (("id", "number", "message_id"), names.code)},
        "I sent your message to {to}. Its number is {id}.",
    ),
    Familiar(
        ("get_stock", "get_price", "stock_price", "quote"),
        {"symbol": (("symbol", "ticker", "item", "name"), "string", names.code)},
        ("What is the price of {symbol}?", "How much is {symbol}?", "Give me the price of {symbol}."),
        {"price": (("price", "value", "cost"), lambda rng: rng.randint(1, 9999) / 100)},
        "The price of {symbol} is {price}.",
    ),
    Familiar(
        ("translate", "translate_text", "translation"),
        {"text": (("text", "input", "words"), "string", names.phrase),
         "language": (("language", "to", "target"), "string", lambda rng: names.wide_word(rng).capitalize())},
        ("Translate {text} into {language}.", "How do you say {text} in {language}?"),
        {"result": (("result", "translation", "text"), names.title)},
        "In {language} that is {result}.",
    ),
    Familiar(
        ("get_user", "find_contact", "lookup_user", "get_customer", "find_person"),
        {"id": (("id", "user_id", "number"), "integer", _whole)},
        ("Who is user {id}?", "Find the user with the number {id}.", "Look up customer {id}."),
        {"name": (("name", "user", "full_name"), names.proper)},
        "User {id} is {name}.",
    ),
    Familiar(
        ("get_time", "current_time", "time_in", "clock"),
        {"zone": (("zone", "timezone", "city", "place"), "string", names.proper)},
        ("What time is it in {zone}?", "Tell me the time in {zone}.", "time in {zone}"),
        {"time": (("time", "now", "local_time"), lambda rng: f"{rng.randrange(24):02}:{rng.randrange(60):02}")},
        "It is {time} in {zone}.",
    ),
)  # fmt: skip


def familiar(rng: Random) -> Request:
    """One of those that people try first."""
    shape = rng.choice(_FAMILIAR)
    keys = {key: rng.choice(ways) for key, (ways, _, _) in shape.takes.items()}
    values = {key: make(rng) for key, (_, _, make) in shape.takes.items()}
    found = {key: make(rng) for key, (_, make) in shape.gives.items()}
    properties = {keys[key]: {"type": kind} for key, (_, kind, _) in shape.takes.items()}
    called = rng.choice(shape.called)
    tool = _declared(
        rng, called, rng.choice((called.replace("_", " ").capitalize(), "")), properties
    )
    result = json.dumps(
        {rng.choice(ways): found[key] for key, (ways, _) in shape.gives.items()}, ensure_ascii=False
    )
    told = values | found
    arguments = {keys[key]: value for key, value in values.items()}
    asked = rng.choice(shape.asked).format(**values)
    return Request(
        tool, asked, arguments, result, shape.said.format(**told), str([*found.values()][-1])
    )
