"""Every parser vector under every way of cutting its text: the result must never depend on the cut."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm53_server.chat.markers import Marker
from glm53_server.chat.parser import (
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    OutputParser,
    Reasoning,
)

VECTORS = Path(__file__).parents[1] / "data" / "api-vectors.jsonl"
CASES = [
    case
    for line in VECTORS.read_text("utf-8").splitlines()
    if (case := json.loads(line))["kind"] == "parser"
]
MARKERS = [marker.value for marker in Marker]


class Scanner:
    """Text mode: finds whole markers in text that may cut them, holding an incomplete one."""

    def __init__(self) -> None:
        self.held = ""

    def feed(self, text: str):
        self.held += text
        while self.held:
            start = self.held.find("<")
            if start < 0:
                yield self.held
                self.held = ""
                return
            if start:
                yield self.held[:start]
                self.held = self.held[start:]
            whole = next((m for m in MARKERS if self.held.startswith(m)), None)
            if whole:
                yield Marker(whole)
                self.held = self.held[len(whole) :]
            elif any(m.startswith(self.held) for m in MARKERS):
                return
            else:
                yield "<"
                self.held = self.held[1:]

    def finish(self):
        if self.held:
            yield self.held


def run(case, chunks, *, end=None):
    tools = case["tools"]
    parser = OutputParser(
        reasoning=case["start"] == "reasoning",
        tools=None if tools is None else {t["name"]: t["parameters"] for t in tools},
    )
    scanner = Scanner()
    events = []
    for chunk in chunks:
        events += parser.feed(scanner.feed(chunk))
    events += parser.feed(scanner.finish())
    length = (end or case["end"]) == "length"
    events += parser.finish(length=length)
    return fold(events, parser, length=length)


def fold(events, parser, *, length):
    reasoning, content, calls = "", "", []
    for event in events:
        match event:
            case Reasoning(text):
                assert text
                reasoning += text
            case Content(text):
                assert text
                content += text
            case CallStart(index, name):
                assert index == len(calls)
                calls.append([name, ""])
            case CallArguments(index, text):
                assert index == len(calls) - 1
                calls[index][1] += text
            case CallEnd(index):
                assert index == len(calls) - 1
    reason = "length" if length or parser.call_open else "tool_calls" if calls else "stop"
    return {
        "reasoning": reasoning or None,
        "content": content or None,
        "calls": calls,
        "finish": reason,
    }


def check(case, result):
    expect = case["expect"]
    assert result["reasoning"] == expect.get("reasoning")
    assert result["content"] == expect.get("content")
    assert result["finish"] == expect["finish_reason"]
    wanted = expect.get("calls", [])
    assert [name for name, _ in result["calls"]] == [call["name"] for call in wanted]
    for (_, arguments), call in zip(result["calls"], wanted, strict=True):
        if "partial" in call:
            assert arguments == call["partial"]
        else:
            value = json.loads(arguments)
            assert value == call["arguments"]
            assert json.dumps(value) == json.dumps(call["arguments"])  # 1 is not 1.0 is not true


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_every_partition_gives_the_expected_result(case):
    whole = "".join(case["chunks"])
    partitions = [case["chunks"], [whole], list(whole)]
    partitions += [[whole[:cut], whole[cut:]] for cut in range(len(whole) + 1)]
    rng = random.Random(case["id"])
    for _ in range(40):
        cuts = sorted(rng.choices(range(len(whole) + 1), k=rng.randint(2, 12)))
        partitions.append(
            [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        )
    for chunks in partitions:
        check(case, run(case, chunks))


TOOLS = CASES[0]["tools"]
PARTS = st.sampled_from(
    [
        *MARKERS,
        "status",
        "get_weather",
        "city",
        "days",
        "q",
        "null",
        "nul",
        "5",
        " ",
        "\n",
        "x",
        '"',
        "\\",
        "é",
        "<",
        "</",
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    parts=st.lists(PARTS, max_size=24),
    cuts=st.lists(st.integers(0, 400), max_size=10),
    start=st.sampled_from(["reasoning", "content"]),
    with_tools=st.booleans(),
    end=st.sampled_from(["stop", "length"]),
)
def test_any_output_parses_the_same_however_it_is_cut(parts, cuts, start, with_tools, end):
    case = {"start": start, "tools": TOOLS if with_tools else None, "end": end}
    whole = "".join(parts)
    edges = sorted(min(cut, len(whole)) for cut in cuts)
    cut = [whole[a:b] for a, b in zip([0, *edges], [*edges, len(whole)], strict=True)]
    result = run(case, [whole])
    assert run(case, cut) == result
    assert run(case, list(whole)) == result
    if end == "stop" and result["finish"] == "tool_calls":
        for _, arguments in result["calls"]:
            assert isinstance(json.loads(arguments), dict)
    if not with_tools:
        assert not result["calls"]
