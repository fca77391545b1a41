"""bench/tiny_suite.py: what it asks, and how it counts, against a server that knows the answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "scripts")]

import tiny_suite  # noqa: E402
from tiny.samples import Split, split_of  # noqa: E402

from glm53_server.chat.normalise import normalise_messages, normalise_tools  # noqa: E402
from glm53_server.schemas_chat import ChatMessage  # noqa: E402

CASES = tiny_suite.cases(7, 5)


def spoken(case, **changes):
    """The chat endpoint's answer that says what is wanted, or something else."""
    wanted = case.sample.messages[case.turn]
    message = {"content": wanted.content, "reasoning_content": wanted.reasoning}
    if wanted.calls:
        message["tool_calls"] = [
            {"function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))}}
            for call in wanted.calls
        ]
    return {"choices": [{"message": message | changes}]}


class Knowing:
    """Stands in for a server: knows every case by its request, and spoils the answers as told."""

    spoil: dict[str, object] = {}  # noqa: RUF012

    def __init__(self, url: str, api_key_file: str | None) -> None:
        self.known = {json.dumps(tiny_suite.request(case)): case for case in CASES}

    def get(self, path):
        return {"engine": "knowing"}

    def post(self, path, body):
        assert body["temperature"] == 0
        return spoken(self.known[json.dumps(body)], **self.spoil)


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    def _run(**spoil):
        monkeypatch.setattr(tiny_suite, "Server", Knowing)
        monkeypatch.setattr(Knowing, "spoil", spoil)
        out = tmp_path / "figures.json"
        words = ["tiny_suite.py", "--url", "http://x", "--cases", "5", "--out", str(out)]
        monkeypatch.setattr(sys, "argv", words)
        code = tiny_suite.main()
        return code, json.loads(out.read_text()), capsys.readouterr()

    return _run


def test_every_kind_is_asked_and_nothing_that_was_trained_on():
    asked = {kind: [case for case in CASES if case.kind == kind] for kind in tiny_suite.KINDS}
    assert {kind: len(found) for kind, found in asked.items()} == dict.fromkeys(tiny_suite.KINDS, 5)
    assert all(split_of(case.sample.key) is Split.HELD_OUT for case in CASES)
    assert all(case.sample.messages[case.turn].calls for case in asked["calls"])
    assert tiny_suite.cases(7, 5) == CASES


def test_a_request_means_the_conversation_it_was_made_from():
    for case in CASES:
        body = tiny_suite.request(case)
        messages = normalise_messages([ChatMessage(**message) for message in body["messages"]])
        for said, wanted in zip(messages, case.sample.messages[: case.turn], strict=True):
            assert (said.role, said.content, said.call_id) == (
                wanted.role,
                wanted.content,
                wanted.call_id,
            )
            assert (said.reasoning or "") == (wanted.reasoning or "")
            assert [(c.name, dict(c.arguments), c.id) for c in said.calls] == [
                (c.name, dict(c.arguments), c.id) for c in wanted.calls
            ]
        assert len(normalise_tools(body.get("tools", []))) == len(case.sample.tools)


def test_a_server_that_knows_everything_passes(run):
    code, figures, shown = run()
    assert code == 0
    assert {kind: counted["share"] for kind, counted in figures["kinds"].items()} == dict.fromkeys(
        tiny_suite.KINDS, 1.0
    )
    assert figures["reasoning_present"] == figures["reasoning_closed"] == 1.0
    assert figures["wrong"] == []
    assert "5 of 5" in shown.out


def test_a_server_that_never_stops_thinking_fails(run):
    code, figures, shown = run(content="", tool_calls=None)
    assert code == 1
    assert figures["reasoning_closed"] == 0.0
    assert all(counted["right"] == 0 for counted in figures["kinds"].values())
    assert "reasoning_closed" in shown.err


def test_calls_with_other_arguments_are_wrong(run):
    call = {"function": {"name": "get_weather", "arguments": '{"city": "Nowhere'}}
    code, figures, _ = run(tool_calls=[call])
    assert code == 1
    assert figures["kinds"]["calls"]["right"] == 0
    assert len(figures["wrong"]) == tiny_suite.SHOWN


def test_missing_reasoning_is_seen(run):
    code, figures, shown = run(reasoning_content=None)
    assert code == 1
    assert figures["reasoning_present"] == 0.0
    assert "reasoning_present" in shown.err
