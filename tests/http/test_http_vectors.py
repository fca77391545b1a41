"""The vectors through the real HTTP stack: token ids replayed, stream and whole answer compared."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from stream_grammar import chat_stream

from glm53_server.engine.base import FinishReason
from glm53_server.engine.scripted import Script

VECTORS = Path(__file__).parents[1] / "data" / "api-vectors.jsonl"
CASES = [json.loads(line) for line in VECTORS.read_text("utf-8").splitlines()]
PARSER = [case for case in CASES if case["kind"] == "parser"]
STOPS = [case for case in CASES if case["kind"] == "stop"]
UTF8 = [case for case in CASES if case["kind"] == "utf8"]


def ids(cases):
    return {"argvalues": cases, "ids": [case["id"] for case in cases]}


def request_of(case):
    body = {"messages": [{"role": "user", "content": "Q"}], "temperature": 0}
    if case.get("tools") is not None:
        body["tools"] = [{"type": "function", "function": tool} for tool in case["tools"]]
    if case.get("start", "content") == "content":
        body["chat_template_kwargs"] = {"enable_thinking": False}
    if case.get("max_tokens"):
        body["max_tokens"] = case["max_tokens"]
    if case.get("stop"):
        body["stop"] = case["stop"]
        body["include_stop_str_in_output"] = case["include_stop_str_in_output"]
    return body


def end_of(case):
    return FinishReason.LENGTH if case.get("end") == "length" else FinishReason.STOP


async def both(app, body):
    """The whole answer's choice and usage, checked to equal the streamed ones."""
    response = await app.post("/v1/chat/completions", body)
    assert response.status_code == 200, response.text
    answer = response.json()
    (choice,) = answer["choices"]
    streamed = await app.post(
        "/v1/chat/completions", {**body, "stream": True, "stream_options": {"include_usage": True}}
    )
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    (folded,), usage = chat_stream(streamed.text, usage=True)
    message = choice["message"]
    assert folded.finish == choice["finish_reason"]
    assert folded.content == (message["content"] or "")
    assert folded.reasoning == message.get("reasoning_content", "")
    calls = [
        (c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])
    ]
    assert [(call["name"], call["arguments"]) for call in folded.calls] == calls
    assert usage == answer["usage"]
    return choice


@pytest.mark.parametrize("case", **ids(PARSER))
def test_parser_vector(app, case):
    text = "".join(case["chunks"])

    async def run():
        for size in (1, 4, len(text)):
            app.say(text, size=size, end=end_of(case))
            check_parser(case, await both(app, request_of(case)))

    asyncio.run(run())


def check_parser(case, choice):
    expect, message = case["expect"], choice["message"]
    assert choice["finish_reason"] == expect["finish_reason"]
    assert message["content"] == expect.get("content")
    assert message.get("reasoning_content") == expect.get("reasoning")
    calls = message.get("tool_calls", [])
    assert [c["function"]["name"] for c in calls] == [c["name"] for c in expect.get("calls", [])]
    for call, wanted in zip(calls, expect.get("calls", []), strict=True):
        arguments = call["function"]["arguments"]
        if "partial" in wanted:
            assert arguments == wanted["partial"]
        else:
            assert json.loads(arguments) == wanted["arguments"]


@pytest.mark.parametrize("case", **ids([case for case in STOPS if case["stop"] != [""]]))
def test_stop_vector(app, case):
    async def run():
        for size in (1, 3, 100):
            app.say("".join(case["chunks"]), size=size, end=end_of(case))
            choice = await both(app, request_of(case))
            assert choice["message"]["content"] == case["expect"]["content"]
            assert choice["finish_reason"] == case["expect"]["finish_reason"]
        completion = await app.post("/v1/completions", {"prompt": "Q", **request_of(case)})
        (raw,) = completion.json()["choices"]
        assert raw["text"] == case["expect"]["content"]
        if case["expect"]["matched"]:
            assert raw["stop_reason"] == case["expect"]["matched"]

    asyncio.run(run())


def test_an_empty_stop_string_is_refused(app):
    response = asyncio.run(app.chat(stop=[""]))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stop[0]"


@pytest.mark.parametrize("case", **ids(UTF8))
def test_utf8_vector(make_app, case):
    app = make_app()
    # Tokens with exactly these bytes, in place of some that the tokenizer has anyway.
    pieces = [bytes.fromhex(piece) for piece in case["token_bytes_hex"]]
    first = 1000
    for i, piece in enumerate(pieces):
        app.tokenizer._bytes[first + i] = piece
    groups = tuple((first + i,) for i in range(len(pieces)))

    async def run():
        app.engine.replay(Script(groups))
        choice = await both(app, request_of(case))
        assert choice["message"]["content"] == case["expect"]["content"]
        assert choice["finish_reason"] == case["expect"]["finish_reason"]

    asyncio.run(run())
