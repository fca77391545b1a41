"""The whole server over the CPU engine: a real checkpoint with random words obeys every constraint."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import httpx
import pytest
from stream_grammar import chat_stream

from glm53_server.app import create_app
from glm53_server.engine import cpu
from glm53ctl.plan import EngineName

CHAT = "/v1/chat/completions"
STATUS = {"type": "function", "function": {"name": "status"}}
SET = {
    "type": "function",
    "function": {
        "name": "set_light",
        "parameters": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}, "room": {"enum": ["hall", "attic"]}},
            "required": ["on", "room"],
        },
    },
}
CLOSED = {"enable_thinking": False}


@pytest.fixture(scope="module")
def ask(plan_of):
    """ask(path, **body) -> response; one loop and one engine for all tests of this file."""
    plan = replace(plan_of(), engine=EngineName.CPU)
    loop = asyncio.new_event_loop()
    engine = cpu.load(plan, lambda *_: None)
    transport = httpx.ASGITransport(create_app(engine, plan))
    client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=120)
    yield lambda path, **body: loop.run_until_complete(client.post(path, json=body))
    loop.run_until_complete(client.aclose())
    loop.run_until_complete(engine.close())
    loop.close()


def chat(ask, **fields):
    messages = [{"role": "user", "content": "Hi"}]
    response = ask(CHAT, messages=messages, seed=1, chat_template_kwargs=CLOSED, **fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def test_a_forced_call_is_a_call_with_valid_arguments(ask):
    named = {"type": "function", "function": {"name": "set_light"}}
    choice = chat(ask, tools=[STATUS, SET], tool_choice=named, max_tokens=40)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "set_light"
    arguments = json.loads(call["function"]["arguments"])
    assert arguments.keys() == {"on", "room"}
    assert isinstance(arguments["on"], bool)
    assert arguments["room"] in {"hall", "attic"}
    assert choice["finish_reason"] == "tool_calls"


def test_a_required_call_calls_something(ask):
    choice = chat(ask, tools=[STATUS], tool_choice="required", max_tokens=40)
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("status", "{}")


def test_constrained_content(ask):
    assert chat(ask, guided_choice=["yes", "no"])["message"]["content"] in {"yes", "no"}
    digits = chat(ask, guided_regex="[0-9]{3}x")["message"]["content"]
    assert (len(digits), digits[-1], digits[:3].isdigit()) == (4, "x", True)
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    content = chat(ask, response_format=wanted, max_tokens=40)["message"]["content"]
    assert json.loads(content)["a"] in {1, 2}


def test_greedy_streams_and_whole_answers_agree(ask):
    messages = [{"role": "user", "content": "Hi"}]
    whole = ask(CHAT, messages=messages, temperature=0, max_tokens=8).json()["choices"][0]
    stream = ask(CHAT, messages=messages, temperature=0, max_tokens=8, stream=True)
    (choice,), _ = chat_stream(stream.text)
    assert choice.reasoning == whole["message"].get("reasoning_content", "")
    assert choice.content == (whole["message"]["content"] or "")
    assert choice.finish == whole["finish_reason"]


def test_teacher_forced_scores(ask):
    ids = [4, 90, 300, 1200]
    body = {"input_ids": ids, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 3}
    answer = ask(
        "/generate", **body, sampling_params={"max_new_tokens": 1, "temperature": 0}
    ).json()
    meta = answer["meta_info"]
    assert meta["input_token_logprobs"][0] is None
    assert [entry[1] for entry in meta["input_token_logprobs"][1:]] == ids[1:]
    assert all(len(top) == 3 for top in meta["input_top_logprobs"][1:])
    (best,) = meta["output_top_logprobs"]
    assert best[0][1] == answer["output_ids"][0]
