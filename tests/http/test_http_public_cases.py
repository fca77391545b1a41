"""Model-independent cases that public server test-suites check, rewritten as black-box tests.

Each id is `suite: what it checks`; docs/http-api.md lists them. Text of a model is never compared.
"""

from __future__ import annotations

import asyncio
import json

import pytest
from stream_grammar import chat_stream, frames

CHAT = "/v1/chat/completions"
ASK = [{"role": "user", "content": "What is the capital of France?"}]
SAID = "Let me think.</think>The capital is Paris 😀, of course."


def run(work):
    return asyncio.run(work)


@pytest.mark.parametrize(
    "messages",
    [None, "string", [123], [{}], [{"role": 123, "content": "x"}], [{"role": "user", "content": 123}], []],
    ids=lambda value: f"llama.cpp: messages {json.dumps(value)}",
)  # fmt: skip
def test_invalid_messages(app, messages):
    assert run(app.post(CHAT, {"messages": messages})).status_code == 400


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"response_format": {"type": "sound"}}, 400),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 123}}}}, 400),
        ({"response_format": {"type": "json_object", "schema": {"type": 123}}}, 400),
        ({"response_format": 123}, 400),
        ({"n": 0}, 400),
        ({"n": 100000}, 400),
        ({"stop": 5}, 400),
        ({"top_logprobs": 5}, 400),
        ({"logprobs": True, "top_logprobs": 500}, 400),
        ({"temperature": -1}, 400),
        ({"top_p": 2}, 400),
        ({"tools": "no"}, 400),
        ({"tool_choice": "sometimes", "tools": []}, 400),
        ({"stream_options": {"include_usage": True}}, 200),
        ({"model": "another-model"}, 200),
        ({"max_tokens": None, "stop": None, "logit_bias": None}, 200),
        ({"tools": [], "stop": []}, 200),
    ],
    ids=lambda value: json.dumps(value)[:60],
)  # fmt: skip
def test_validation_like_vllm_and_llama_cpp(app, fields, status):
    app.say(SAID)
    assert run(app.post(CHAT, {"messages": ASK, **fields})).status_code == status


def test_llama_cpp_stream_invariants(app):
    app.say(SAID)

    async def ask():
        body = {"messages": ASK, "stream": True, "stream_options": {"include_usage": True}}
        text = (await app.post(CHAT, body)).text
        chat_stream(text, usage=True)
        chunks = [json.loads(data) for _, data in frames(text) if data != "[DONE]"]
        assert len({chunk["id"] for chunk in chunks}) == 1
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
        assert ["role" in delta for delta in deltas] == [True] + [False] * (len(deltas) - 1)
        assert deltas[-1] == {}
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] > 0

    run(ask())


def test_llama_cpp_logprobs_join_to_the_content_in_a_stream(app):
    app.say(SAID, size=3)
    body = {"messages": ASK, "stream": True, "logprobs": True, "top_logprobs": 5}
    (choice,), _ = chat_stream(run(app.post(CHAT, body)).text)
    joined = b"".join(bytes(entry["bytes"]) for entry in choice.logprobs)
    assert joined.decode() == choice.content


def test_llama_cpp_and_vllm_tokenize(app):
    async def ask():
        for body in ({"content": "Hello"}, {"prompt": "Hello"}, {"messages": ASK}):
            answer = (await app.post("/tokenize", body)).json()
            assert len(answer["tokens"]) == answer["count"] > 0
            back = (await app.post("/detokenize", {"tokens": answer["tokens"]})).json()
            again = (await app.post("/tokenize", {"prompt": back["prompt"]})).json()
            assert again["tokens"] == answer["tokens"]
        assert (await app.post("/tokenize", {})).status_code == 400
        assert (await app.post("/detokenize", {"tokens": [10**6]})).status_code == 400

    run(ask())


def test_sglang_generate_streams_cumulative_text_and_scores(app):
    app.say("one two three")

    async def ask():
        body = {
            "text": "x",
            "stream": True,
            "return_logprob": True,
            "top_logprobs_num": 2,
            "logprob_start_len": 0,
        }
        events = [
            json.loads(d)
            for _, d in frames((await app.post("/generate", body)).text)
            if d != "[DONE]"
        ]
        assert events[-1]["text"] == "one two three"
        meta = events[-1]["meta_info"]
        assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"]
        assert len(meta["output_token_logprobs"]) == meta["completion_tokens"]
        assert meta["input_token_logprobs"][0] is None
        matched = {"text": "x", "sampling_params": {"stop": ["two"], "max_new_tokens": 50}}
        answer = (await app.post("/generate", matched)).json()
        assert answer["meta_info"]["finish_reason"]["matched"] == "two"
        assert answer["text"] == "one "
        too_long = await app.post("/generate", {"input_ids": [5] * 5000})
        assert too_long.json()["error"]["code"] == "context_length_exceeded"

    run(ask())


def test_open_responses_event_order_and_id_prefixes(app):
    app.say(SAID)
    text = run(app.post("/v1/responses", {"input": "Hi", "stream": True})).text
    events = [(name, json.loads(data)) for name, data in frames(text)]
    assert all(name == event["type"] for name, event in events)
    names = [name for name, _ in events if not name.endswith(".delta")]
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.reasoning_text.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    final = events[-1][1]["response"]
    assert final["id"].startswith("resp_")
    assert [item["id"].split("_")[0] for item in final["output"]] == ["rs", "msg"]


def test_llama_cpp_anthropic_event_structure(app):
    app.say(SAID)
    body = {"max_tokens": 100, "messages": ASK, "stream": True}
    events = [(name, json.loads(d)) for name, d in frames(run(app.post("/v1/messages", body)).text)]
    assert all(name == event["type"] for name, event in events)
    open_index, next_index = None, 0
    for name, event in events[1:-2]:
        if name == "content_block_start":
            assert open_index is None
            assert event["index"] == next_index
            open_index, next_index = next_index, next_index + 1
        else:
            assert event["index"] == open_index
            if name == "content_block_stop":
                open_index = None
    assert [name for name, _ in events[-2:]] == ["message_delta", "message_stop"]
    assert events[0][1]["message"]["usage"]["input_tokens"] > 0
    assert events[-2][1]["usage"]["output_tokens"] > 0


def test_every_answer_has_the_fields_strict_clients_need(app):
    app.say(SAID)

    async def ask():
        chat = (await app.post(CHAT, {"messages": ASK})).json()
        raw = (await app.post("/v1/completions", {"prompt": "x"})).json()
        for answer in (chat, raw):
            assert {"id", "object", "created", "model", "choices", "usage"} <= answer.keys()
            assert isinstance(answer["created"], int)
        message = chat["choices"][0]["message"]
        assert "tool_calls" not in message
        assert message["refusal"] is None

    run(ask())


def test_stream_and_whole_answer_agree_with_a_seed(app):
    app.say(SAID, size=2)

    async def ask():
        body = {"messages": ASK, "temperature": 0, "seed": 1}
        whole = (await app.post(CHAT, body)).json()["choices"][0]
        (streamed,), _ = chat_stream((await app.post(CHAT, {**body, "stream": True})).text)
        assert streamed.content == whole["message"]["content"]
        assert streamed.reasoning == whole["message"]["reasoning_content"]
        assert streamed.finish == whole["finish_reason"]

    run(ask())
