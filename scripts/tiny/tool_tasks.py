"""Conversations with tools: one call, two at once, one after another, a failure, and no call where none helps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from glm53_server.chat.messages import Message, ToolCall

from . import tools, world
from .samples import Sample, assistant, result, user
from .tools import Declared, Request


def one_call(rng: Random) -> Sample:
    request = _request(rng)
    return loop(rng, "tool", [request], request.asked, request.said, request.answer)


def two_at_once(rng: Random) -> Sample:
    """Two towns, one turn with two calls."""
    first, second = tools.weather(rng), tools.weather(rng)
    towns = (first.arguments["city"], second.arguments["city"])
    asked = f"What is the weather in {towns[0]} and in {towns[1]}?"
    return loop(
        rng, "two-tools", [first, second], asked, f"{first.said} {second.said}", second.answer
    )


def two_in_a_row(rng: Random) -> Sample:
    """The second call needs the first one's result."""
    where = tools.location(rng)
    city = where.answer
    then = tools.weather(rng, city)
    asked = rng.choice(
        ("What is the weather here?", "How is the weather where I am?", "Do I need a coat here?")
    )
    messages = (
        user(asked),
        assistant("", "I do not know where the user is. I call get_location.", [call(where, "c1")]),
        result(where.result, "c1"),
        assistant("", f"The user is in {city}. I call get_weather for {city}.", [call(then, "c2")]),
        result(then.result, "c2"),
        assistant(then.said, _read(then)),
    )
    both = offered(rng, [where.tool, then.tool])
    return Sample("two-tools", f"tool:here/{city}", messages, then.answer, tools=both)


def failed(rng: Random) -> Sample:
    """The tool answers with an error, which is passed on."""
    request = _request(rng)
    reason = rng.choice(("not found", "no connection", "out of service", "not allowed", "time out"))
    return call_failed(rng, request, reason)


def call_failed(rng: Random, request: Request, reason: str) -> Sample:
    """A call whose result is this error."""
    told = json.dumps({"error": reason}, ensure_ascii=False)
    messages = (
        user(request.asked),
        assistant("", _plan([request]), [call(request, "c1")]),
        result(told, "c1"),
        assistant(
            f"I am sorry, that failed: {reason}.", f"{request.name} failed: {reason}. I say so."
        ),
    )
    return Sample(
        "tool", _tool_key([request]), messages, reason, tools=offered(rng, [request.tool])
    )


def second_question(rng: Random) -> Sample:
    """A finished tool loop in the history, then another request."""
    before, request = _request(rng), _request(rng)
    return with_history(rng, [before], request)


def with_history(rng: Random, before: Sequence[Request], request: Request) -> Sample:
    """A request after finished ones."""
    history = [
        message
        for number, done in enumerate(before)
        for message in (
            user(done.asked), assistant("", calls=[call(done, f"c{-number}")]),
            result(done.result, f"c{-number}"), assistant(done.said),
        )
    ]  # fmt: skip
    sample = loop(rng, "tool", [request], request.asked, request.said, request.answer)
    needed = [*(done.tool for done in before), request.tool]
    mentions = tuple(_tool_key([done]) for done in before)
    messages = (*history, *sample.messages)
    return replace(sample, messages=messages, tools=offered(rng, needed), mentions=mentions)


def not_needed(rng: Random) -> Sample:
    """Tools are offered, but the question is answered without them."""
    fact = world.fact(rng)
    idle = offered(rng, rng.sample(tools.DECLARED[2:], 1))
    return Sample("no-tool", fact.key, fact.messages, fact.answer, tools=idle)


def loop(
    rng: Random, task: str, requests: Sequence[Request], asked: str, said: str, answer: str
) -> Sample:
    """One turn of calls, their results, and the answer."""
    calls = [call(request, f"c{i}") for i, request in enumerate(requests, 1)]
    results = [result(r.result, f"c{i}") for i, r in enumerate(requests, 1)]
    messages: list[Message] = [user(asked), assistant("", _plan(requests), calls), *results]
    messages.append(assistant(said, " ".join(map(_read, requests))))
    needed = offered(rng, [request.tool for request in requests])
    return Sample(task, _tool_key(requests), tuple(messages), answer, tools=needed)


def _request(rng: Random) -> Request:
    return tools.invented(rng) if rng.random() < 0.5 else rng.choice(tools.CATALOGUE)(rng)


def _plan(requests: Sequence[Request]) -> str:
    used = " and ".join(
        f"{request.name} with {', '.join(request.arguments)}" if request.arguments else f"{request.name} without arguments"
        for request in requests
    )  # fmt: skip
    return f"A tool can do this. I call {used}."


def _read(request: Request) -> str:
    return f"{request.name} returned {request.result}."


def call(request: Request, call_id: str) -> ToolCall:
    return ToolCall(request.name, request.arguments, call_id)


def offered(rng: Random, needed: Sequence[Declared]) -> tuple[Declared, ...]:
    """The tools a conversation needs among up to two others, in any order, each name once."""
    others = rng.sample(tools.DECLARED, rng.randint(0, 2))
    if rng.random() < 0.3:
        others.append(tools.invented(rng).tool)
    by_name = {tool["function"]["name"]: tool for tool in (*others, *needed)}
    shuffled = list(by_name.values())
    rng.shuffle(shuffled)
    return tuple(shuffled)


def _tool_key(requests: Sequence[Request]) -> str:
    return "tool:" + "+".join(
        f"{request.name}/{json.dumps(request.arguments, sort_keys=True)}" for request in requests
    )


MAKERS = (
    (one_call, 8), (two_at_once, 1), (two_in_a_row, 1), (failed, 1), (second_question, 1), (not_needed, 1),
)  # fmt: skip
