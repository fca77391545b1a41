"""Practice with tools: strange calls alone, together and in a row, and no call where none fits.

`tool_tasks` has what the suite asks; nothing of this is.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from random import Random

from . import (
    arithmetic,
    clock,
    dialogue,
    lists,
    names,
    small_talk,
    strange_tools,
    tools,
    typed_sums,
    units,
    world,
)
from .samples import Maker, Sample, assistant, question, result, user
from .tool_tasks import call, call_failed, loop, offered, with_history
from .tools import Declared, Request, declare

QUIET: tuple[tuple[Maker, float], ...] = (
    *arithmetic.MAKERS, *typed_sums.PRACTICE, *clock.MAKERS, *clock.PRACTICE, *lists.MAKERS, *lists.PRACTICE,
    *world.PRACTICE, *units.MAKERS, (world.fact, 10), (world.follow_up, 3), (dialogue.talk, 6), (dialogue.greeted, 3),
    (dialogue.remembered, 4), (small_talk.more_talk, 14), (small_talk.impossible, 5),
)  # fmt: skip
_SMALL = (tools.LIGHT, tools.ALARM, tools.MESSAGE, tools.EVENT, tools.ORDER, tools.WEATHER)
_NO_TOOL = "Nobody told me this and I have no tool for it. I must not guess."


def strange_call(rng: Random) -> Sample:
    """One call in words that occur nowhere else."""
    request = _request(rng)
    made = loop(rng, "tool", [request], request.asked, request.said, request.answer)
    return replace(made, tools=offered(rng, [*_others(rng), request.tool]))


def two_strange(rng: Random) -> Sample:
    """Two tools, or one of them twice, in one turn."""
    first, second = _request(rng), _request(rng)
    if first.name == second.name and first.tool != second.tool:
        return strange_call(rng)
    asked = f"{first.asked} {second.asked}"
    said = f"{first.said} {second.said}"
    return loop(rng, "two-tools", [first, second], asked, said, second.answer)


def strange_again(rng: Random) -> Sample:
    """A tool loop or two in the history, then another request, often of the same tool."""
    request = _request(rng)
    before = [_request(rng) for _ in range(rng.choice((1, 1, 2)))]
    if len({one.name for one in (*before, request)}) <= len(before):
        return strange_call(rng)
    return with_history(rng, before, request)


def chained(rng: Random) -> Sample:
    """A second call that needs what the first one returned."""
    first, then = strange_tools.strange(rng), strange_tools.strange(rng)
    if first.name == then.name:
        return strange_call(rng)
    key = rng.choice(("id", "code", "name", "number", "path", "key", names.word(rng)))
    value = rng.randint(1, 99999) if rng.random() < 0.3 else names.text(rng)
    kind = "string" if isinstance(value, str) else "integer"
    first = replace(first, result=json.dumps({key: value}, ensure_ascii=False))
    tool = declare(then.name, rng.choice(("", then.name)), **{key: {"type": kind}})
    then = replace(then, tool=tool, arguments={key: value})
    wish = rng.choice(
        ("Then use {0} with its {1}.", "With its {1} call {0}.", "Then {0} with that {1}.")
    )
    messages = (
        user(f"{first.asked} {wish.format(then.name, key)}"),
        assistant("", f"First I need the {key}. I call {first.name}.", [call(first, "c1")]),
        result(first.result, "c1"),
        assistant("", f"{first.name} returned {first.result}. I call {then.name} with {key}.", [call(then, "c2")]),
        result(then.result, "c2"),
        assistant(then.said, f"{then.name} returned {then.result}."),
    )  # fmt: skip
    named = f"tool:chain/{first.name}/{then.name}/{value}"
    return Sample("two-tools", named, messages, then.answer, tools=offered(rng, [first.tool, tool]))


def strange_failure(rng: Random) -> Sample:
    """A failure in words to be passed on."""
    reason = rng.choice((
        "not found", "no connection", "busy", "permission denied", f"{names.text(rng)} not found",
        f"unknown {names.word(rng)}", f"no such {names.wide_word(rng)}", f"{names.code(rng)} is locked",
    ))  # fmt: skip
    return call_failed(rng, _request(rng), reason)


def calculated(rng: Random) -> Sample:
    """A calculator that is offered is used."""
    a, b, sign = rng.randint(0, 9999), rng.randint(1, 999), rng.choice("+-*")
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    low, high = sorted((a, b))
    key = f"arithmetic:{a}-{b}" if sign == "-" else f"arithmetic:{low}{sign}{high}"
    if rng.random() < 0.5:
        name = rng.choice(("calculate", "calculator", "evaluate", "compute"))
        tool = declare(name, "Evaluate an expression", expression={"type": "string"})
        arguments = {"expression": f"{a} {sign} {b}"}
    else:
        name = {"+": "add", "-": "subtract", "*": "multiply"}[sign]
        tool = declare(
            name, f"{name.capitalize()} two numbers", a={"type": "integer"}, b={"type": "integer"}
        )
        arguments = {"a": a, "b": b}
    asked = rng.choice(
        ("What is {} {} {}?", "{} {} {}", "Calculate {} {} {}.", "How much is {} {} {}?")
    ).format(a, sign, b)
    said = f"{a} {sign} {b} = {value}."
    request = Request(tool, asked, arguments, json.dumps({"result": value}), said, str(value))
    return replace(loop(rng, "tool", [request], asked, said, str(value)), mentions=(key,))


def beside_tools(rng: Random) -> Sample:
    """Talk, sums and facts while tools are declared that do not fit: no call."""
    makers, weights = zip(*QUIET, strict=True)
    sample = rng.choices(makers, weights)[0](rng)
    return replace(sample, tools=_unfitting(rng))


def no_such_tool(rng: Random) -> Sample:
    """A request whose tool is not offered, or with no tools at all."""
    request = _request(rng) if rng.random() < 0.4 else rng.choice(tools.CATALOGUE)(rng)
    fitting = {tools.WEATHER["function"]["name"], tools.MESSAGE["function"]["name"], request.name}
    left = () if rng.random() < 0.5 else _unfitting(rng, fitting)
    made = question(
        "unknown",
        f"no tool/{request.asked}",
        request.asked,
        _NO_TOOL,
        "I don't know that.",
        "I don't know",
    )
    return replace(made, tools=left)


def _request(rng: Random) -> Request:
    return strange_tools.familiar(rng) if rng.random() < 0.3 else strange_tools.strange(rng)


def _others(rng: Random) -> Sequence[Declared]:
    """Up to three more tools, sometimes."""
    return [_request(rng).tool for _ in range(rng.choice((0, 0, 0, 1, 2, 3)))]


def _unfitting(rng: Random, fitting: Collection[str] = ()) -> tuple[Declared, ...]:
    """Up to three tools that answer nothing that is asked here, none of these names."""
    count = rng.randint(1, 3)
    found = [strange_tools.strange(rng).tool for _ in range(count)]
    if rng.random() < 0.5:
        found = rng.sample(_SMALL, count)
    by_name = {tool["function"]["name"]: tool for tool in found}
    return tuple(tool for name, tool in by_name.items() if name not in fitting)


PRACTICE = (
    (strange_call, 28), (two_strange, 3), (chained, 3), (strange_again, 4), (strange_failure, 2), (calculated, 2), (beside_tools, 12),
    (no_such_tool, 4),
)  # fmt: skip
