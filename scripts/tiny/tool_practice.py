"""Practice with tools: strange calls alone, together and in a row, and no call where none fits.

`tool_tasks` has what the suite asks; nothing of this is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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
from .samples import Maker, Sample, question
from .tool_tasks import call_failed, loop, offered, with_history
from .tools import Declared, Request, declare

_QUIET: tuple[tuple[Maker, float], ...] = (
    *arithmetic.MAKERS, *typed_sums.PRACTICE, *clock.MAKERS, *clock.PRACTICE, *lists.MAKERS, *lists.PRACTICE,
    *world.PRACTICE, *units.MAKERS, (world.fact, 10), (world.follow_up, 3), (dialogue.talk, 6), (dialogue.greeted, 3),
    (dialogue.remembered, 4), (small_talk.more_talk, 14), (small_talk.impossible, 5),
)  # fmt: skip
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
    makers, weights = zip(*_QUIET, strict=True)
    sample = rng.choices(makers, weights)[0](rng)
    return replace(sample, tools=_unfitting(rng))


def no_such_tool(rng: Random) -> Sample:
    """A request whose tool is not offered, or with no tools at all."""
    request = _request(rng) if rng.random() < 0.4 else rng.choice(tools.CATALOGUE)(rng)
    left = (
        ()
        if rng.random() < 0.5
        else tuple(tool for tool in _unfitting(rng) if tool["function"]["name"] != request.name)
    )
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


def _unfitting(rng: Random) -> tuple[Declared, ...]:
    """One to three tools that answer nothing that is asked here."""
    if rng.random() < 0.5:
        return tuple(
            rng.sample(
                (tools.LIGHT, tools.ALARM, tools.MESSAGE, tools.EVENT, tools.ORDER, tools.WEATHER),
                rng.randint(1, 3),
            )
        )
    found = [strange_tools.strange(rng).tool for _ in range(rng.randint(1, 3))]
    return tuple({tool["function"]["name"]: tool for tool in found}.values())


PRACTICE = (
    (strange_call, 20), (two_strange, 3), (strange_again, 4), (strange_failure, 2), (calculated, 2), (beside_tools, 12),
    (no_such_tool, 4),
)  # fmt: skip
