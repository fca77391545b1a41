"""Tool declarations: a fixed catalogue and an endless supply of invented ones, with arguments to call them.

A request is the user's words, the arguments they imply, and the tool's answer with the words for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from .names import COLOURS, DAYS, ROOMS, THINGS, name, phrase, place, word
from .world import TOWNS

Declared = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One call that a user's words ask for. `answer` is what the final words must contain."""

    tool: Declared
    asked: str
    arguments: Mapping[str, Any]
    result: str
    said: str
    answer: str

    @property
    def name(self) -> str:
        return self.tool["function"]["name"]


def declare(name_: str, about: str, **parameters: Mapping[str, Any]) -> Declared:
    """A declaration in the API's form. Every parameter is required."""
    schema: dict[str, Any] = {"type": "object", "properties": dict(parameters)}
    if parameters:
        schema["required"] = list(parameters)
    function = {"name": name_, "description": about, "parameters": schema}
    return {"type": "function", "function": function}


def _of(kind: str, about: str = "") -> dict[str, Any]:
    return {"type": kind, "description": about} if about else {"type": kind}


def _object(**properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties)}


WEATHER = declare("get_weather", "Weather of a town", city=_of("string", "Name of the town"))
LOCATION = declare("get_location", "Where the user is")
NOW = declare("get_time", "The current time")
PRICE = declare("get_price", "Price of one item in coins", item=_of("string"))
LIGHT = declare(
    "set_light",
    "Switch a light",
    room=_of("string"),
    on=_of("boolean"),
    brightness=_of("integer", "0 to 100"),
)
MESSAGE = declare(
    "send_message", "Send a message to a person", to=_of("string"), text=_of("string")
)
ALARM = declare(
    "set_alarm",
    "Set an alarm",
    time=_of("string", "HH:MM"),
    days={"type": "array", "items": _of("string")},
)
EVENT = declare(
    "create_event", "Add an event to the calendar", title=_of("string"),
    when=_object(day=_of("string"), hour=_of("integer")), guests={"type": "array", "items": _of("string")},
)  # fmt: skip
ORDER = declare(
    "place_order", "Order items from the shop",
    items={"type": "array", "items": _object(name=_of("string"), quantity=_of("integer"))},
)  # fmt: skip
POPULATION = declare("get_population", "Number of people in a town", town=_of("string"))


def any_town(rng: Random) -> str:
    return rng.choice(TOWNS).name if rng.random() < 0.5 else place(rng)


def weather(rng: Random, city: str = "") -> Request:
    city = city or any_town(rng)
    sky, degrees = (
        rng.choice(("sunny", "cloudy", "rainy", "windy", "foggy", "snowy")),
        rng.randint(-9, 35),
    )
    asked = rng.choice((
        "What is the weather in {}?", "How is the weather in {}?", "Do I need a coat in {}?",
        "Tell me the weather in {}.", "What's the weather like in {} today?",
    )).format(city)  # fmt: skip
    result = json.dumps({"sky": sky, "degrees": degrees})
    said = f"It is {sky} in {city}, {degrees} degrees."
    return Request(WEATHER, asked, {"city": city}, result, said, f"{degrees} degrees")


def location(rng: Random) -> Request:
    city = any_town(rng)
    asked = rng.choice(("Where am I?", "Which town am I in?", "Find my location."))
    return Request(LOCATION, asked, {}, json.dumps({"town": city}), f"You are in {city}.", city)


def now(rng: Random) -> Request:
    time = f"{rng.randrange(24):02}:{rng.randrange(60):02}"
    asked = rng.choice(("What time is it?", "What is the time now?", "Tell me the time."))
    return Request(NOW, asked, {}, json.dumps({"time": time}), f"It is {time}.", time)


def price(rng: Random) -> Request:
    item = rng.choice(THINGS) if rng.random() < 0.5 else word(rng)
    coins = rng.randint(1, 999)
    asked = rng.choice(("What do {} cost?", "What is the price of {}?", "How much are {}?")).format(
        item
    )
    said = f"The price of {item} is {coins} coins."
    return Request(
        PRICE, asked, {"item": item}, json.dumps({"coins": coins}), said, f"{coins} coins"
    )


def population(rng: Random) -> Request:
    town, people = any_town(rng), rng.randint(100, 99999)
    asked = rng.choice(("How many people live in {}?", "What is the population of {}?")).format(
        town
    )
    said = f"{people} people live in {town}."
    return Request(
        POPULATION, asked, {"town": town}, json.dumps({"people": people}), said, f"{people} people"
    )


def light(rng: Random) -> Request:
    room, on = rng.choice(ROOMS), rng.random() < 0.7
    level = rng.randint(1, 100) if on else 0
    asked = (
        f"Switch on the light in the {room} at {level} percent."
        if on
        else f"Switch off the light in the {room}."
    )
    said = f"The light in the {room} is {'on' if on else 'off'}."
    arguments = {"room": room, "on": on, "brightness": level}
    return Request(LIGHT, asked, arguments, json.dumps({"ok": True}), said, "on" if on else "off")


def message(rng: Random) -> Request:
    to, text = name(rng), phrase(rng)
    asked = rng.choice(("Tell {0}: {1}", "Send {0} this message: {1}", "Write to {0}: {1}")).format(
        to, text
    )
    arguments = {"to": to, "text": text}
    return Request(
        MESSAGE, asked, arguments, json.dumps({"sent": True}), f"I sent your message to {to}.", to
    )


def alarm(rng: Random) -> Request:
    time = f"{rng.randrange(24):02}:{rng.randrange(0, 60, 5):02}"
    days = rng.sample(DAYS, rng.randint(1, 3))
    asked = f"Set an alarm for {time} on {', '.join(days)}."
    said = f"The alarm is set for {time}."
    return Request(ALARM, asked, {"time": time, "days": days}, json.dumps({"ok": True}), said, time)


def event(rng: Random) -> Request:
    title, day, hour = phrase(rng), rng.choice(DAYS), rng.randint(7, 21)
    guests = [name(rng) for _ in range(rng.randint(1, 3))]
    asked = f"Put {title} in my calendar on {day} at {hour} with {', '.join(guests)}."
    number = rng.randint(100, 999)
    arguments = {"title": title, "when": {"day": day, "hour": hour}, "guests": guests}
    return Request(
        EVENT,
        asked,
        arguments,
        json.dumps({"id": number}),
        f"The event has the number {number}.",
        str(number),
    )


def order(rng: Random) -> Request:
    items = [(thing, rng.randint(1, 40)) for thing in rng.sample(THINGS, rng.randint(1, 3))]
    told = ", ".join(f"{count} {thing}" for thing, count in items)
    coins = rng.randint(5, 900)
    arguments = {"items": [{"name": thing, "quantity": count} for thing, count in items]}
    said = f"Your order costs {coins} coins."
    return Request(
        ORDER, f"Order {told}.", arguments, json.dumps({"total": coins}), said, f"{coins} coins"
    )


_VERBS = (
    "find",
    "read",
    "open",
    "check",
    "update",
    "create",
    "delete",
    "move",
    "count",
    "start",
    "stop",
    "book",
)
_NOUNS = (
    "ticket", "file", "table", "room", "song", "parcel", "user", "task", "report", "pump", "door", "train",
    "recipe", "account", "robot", "sensor", "page", "garden", "photo", "letter",
)  # fmt: skip
_VALUES: dict[str, tuple[str, Callable[[Random], Any]]] = {
    "id": ("integer", lambda rng: rng.randint(1, 9999)),
    "name": ("string", lambda rng: word(rng)),
    "owner": ("string", name),
    "colour": ("string", lambda rng: rng.choice(COLOURS)),
    "count": ("integer", lambda rng: rng.randint(1, 99)),
    "urgent": ("boolean", lambda rng: rng.random() < 0.5),
    "rate": ("number", lambda rng: rng.randint(1, 99) / 10),
    "day": ("string", lambda rng: rng.choice(DAYS)),
    "place": ("string", any_town),
    "title": ("string", phrase),
    "level": ("integer", lambda rng: rng.randint(0, 10)),
    "code": ("string", lambda rng: f"{word(rng, 1)}-{rng.randint(10, 99)}"),
}


def invented(rng: Random) -> Request:
    """A tool nobody has seen, asked for by what it does; its answer is one field."""
    verb, noun = rng.choice(_VERBS), rng.choice(_NOUNS)
    if rng.random() < 0.3:
        noun = word(rng)
    chosen = rng.sample(tuple(_VALUES), rng.randint(0, 3))
    arguments = {key: _VALUES[key][1](rng) for key in chosen}
    return _asked_for(rng, verb, noun, {key: _VALUES[key][0] for key in chosen}, arguments)


def _asked_for(
    rng: Random, verb: str, noun: str, kinds: Mapping[str, str], arguments: Mapping[str, Any]
) -> Request:
    tool = declare(
        f"{verb}_{noun}", f"{verb.capitalize()} a {noun}", **{k: _of(kinds[k]) for k in kinds}
    )
    told = " and ".join(f"{key} {_said(value)}" for key, value in arguments.items())
    asked = rng.choice(
        ("Please {} a {}", "{} a {}", "Can you {} a {}", "I want to {} a {}")
    ).format(verb, noun)
    asked = asked[0].upper() + asked[1:] + (f" with {told}." if told else ".")
    key, value = (
        rng.choice(("status", "value", "number", "state")),
        rng.choice((word(rng), rng.randint(1, 9999))),
    )
    said = f"The {key} of the {noun} is {value}."
    return Request(tool, asked, arguments, json.dumps({key: value}), said, str(value))


def _said(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


CATALOGUE = (weather, location, now, price, population, light, message, alarm, event, order)
DECLARED = (WEATHER, LOCATION, NOW, PRICE, POPULATION, LIGHT, MESSAGE, ALARM, EVENT, ORDER)
