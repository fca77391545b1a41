"""Shapes of the endpoints and of their errors."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from stream_grammar import frames

from glm53_server.engine.base import EngineError, EngineState


def run(work):
    return asyncio.run(work)


def test_models_and_health(make_app):
    app = make_app()

    async def ask():
        (card,) = (await app.get("/v1/models")).json()["data"]
        assert card["id"] == "tiny"
        assert card["max_model_len"] == card["context_length"] == 4096
        assert (await app.get("/v1/models/tiny")).json() == card
        missing = await app.get("/v1/models/nope")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "model_not_found"
        health = await app.get("/health")
        assert (health.status_code, health.json()["ok"]) == (200, True)
        app.engine._state = EngineState.LOST
        for path in ("/health", "/ready"):
            health = await app.get(path)
            assert (health.status_code, health.json()["ok"]) == (503, False)
        refused = await app.chat()
        assert refused.status_code == 503
        assert refused.headers["retry-after"]

    run(ask())


def test_stats_count_requests_and_tokens(app):
    async def ask():
        app.say("</think>abc")
        usage = (await app.chat()).json()["usage"]
        stats = (await app.get("/stats")).json()
        assert stats["requests"] == 1
        assert stats["completion_tokens"] == usage["completion_tokens"]
        assert stats["running"] == stats["queued"] == stats["in_flight"] == 0
        assert stats["steps"] >= usage["completion_tokens"]
        assert stats["state"] == "ready"
        info = (await app.get("/server_info")).json()
        assert info["context_length"] == 4096
        assert info["server_args"]["max_running_requests"] == 4

    run(ask())


def test_usage_counts_reasoning_markup_and_the_end_id(app):
    app.say("ab</think>cd")
    ids = app.tokenizer.encode_raw("ab</think>cd")
    closer = ids.index(app.tokenizer.id_of("</think>"))
    usage = run(app.chat()).json()["usage"]
    assert usage["completion_tokens"] == len(ids) + 1
    assert usage["completion_tokens_details"]["reasoning_tokens"] == closer + 1
    assert usage["prompt_tokens"] == len(app.last.prompt_ids)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize("wanted", [1, 2, 3, 5, 17])
@pytest.mark.parametrize("endpoint", ["chat", "completions", "generate"])
def test_max_tokens_is_exact(app, endpoint, wanted):
    app.say("</think>one two", size=4)

    async def ask():
        if endpoint == "chat":
            answer = (await app.chat(max_tokens=wanted, ignore_eos=True)).json()
            assert answer["choices"][0]["finish_reason"] == "length"
            return answer["usage"]["completion_tokens"]
        if endpoint == "completions":
            body = {"prompt": "x", "max_tokens": wanted, "ignore_eos": True}
            return (await app.post("/v1/completions", body)).json()["usage"]["completion_tokens"]
        body = {"text": "x", "sampling_params": {"max_new_tokens": wanted, "ignore_eos": True}}
        answer = (await app.post("/generate", body)).json()
        assert answer["meta_info"]["finish_reason"]["type"] == "length"
        assert len(answer["output_ids"]) == wanted
        return answer["meta_info"]["completion_tokens"]

    assert run(ask()) == wanted


def test_completions_accept_every_prompt_form(app):
    app.say("x")

    async def ask():
        for prompt, choices in [("a", 1), (["a", "b"], 2), ([5, 6], 1), ([[5], [6], [7]], 3)]:
            for n in (1, 2):
                body = {"prompt": prompt, "n": n, "max_tokens": 3}
                answer = (await app.post("/v1/completions", body)).json()
                assert [c["index"] for c in answer["choices"]] == list(range(choices * n))
                assert answer["id"].startswith("cmpl-")
                sizes = [len(r.prompt_ids) for r in list(app.engine.requests)[-choices * n :: n]]
                assert answer["usage"]["prompt_tokens"] == sum(sizes)
        assert app.last.prompt_ids == (7,)
        for empty in ("", [], [""], [[]]):
            assert (await app.post("/v1/completions", {"prompt": empty})).status_code == 400

    run(ask())


def test_completion_logprobs_have_offsets(app):
    app.say("ab cd")

    async def ask():
        body = {"prompt": "x", "logprobs": 2}
        (choice,) = (await app.post("/v1/completions", body)).json()["choices"]
        found = choice["logprobs"]
        assert "".join(found["tokens"]) == choice["text"] == "ab cd"
        for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
            assert choice["text"][offset:].startswith(token)
        stream = await app.post("/v1/completions", {**body, "stream": True})
        *chunks, done = [data for _, data in frames(stream.text)]
        assert done == "[DONE]"
        tokens, offsets, text = [], [], ""
        for chunk in map(json.loads, chunks):
            (one,) = chunk["choices"]
            text += one["text"]
            tokens += one["logprobs"]["tokens"]
            offsets += one["logprobs"]["text_offset"]
        assert (text, tokens, offsets) == (choice["text"], found["tokens"], found["text_offset"])

    run(ask())


def test_chat_logprobs_join_to_the_content(app):
    app.say("thinking</think>\n\nZürich 😀!", size=3)

    async def ask():
        answer = (await app.chat(logprobs=True, top_logprobs=3)).json()
        (choice,) = answer["choices"]
        entries = choice["logprobs"]["content"]
        joined = b"".join(bytes(entry["bytes"]) for entry in entries)
        assert joined.decode() == choice["message"]["content"] == "Zürich 😀!"
        assert all(len(entry["top_logprobs"]) == 3 for entry in entries)
        assert (await app.chat(top_logprobs=3)).status_code == 400

    run(ask())


def test_generate_shapes(app):
    app.say("ab cd")

    async def ask():
        body = {
            "input_ids": [4, 5, 6],
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": 2,
            "token_ids_logprob": [7],
        }
        answer = (await app.post("/generate", body)).json()
        meta = answer["meta_info"]
        assert answer["text"] == "ab cd"
        assert meta["finish_reason"]["type"] == "stop"
        assert meta["input_top_logprobs"][0] is None
        assert len(meta["input_top_logprobs"]) == meta["prompt_tokens"] == 3
        assert [entry[1] for entry in meta["input_token_ids_logprobs"][1]] == [7]
        assert len(meta["output_top_logprobs"]) == len(answer["output_ids"])
        assert all(len(top) == 2 for top in meta["output_top_logprobs"])
        batch = (await app.post("/generate", {"text": ["a", "b"]})).json()
        assert [one["text"] for one in batch] == ["ab cd", "ab cd"]
        stream = await app.post("/generate", {"text": "a", "stream": True})
        *events, done = [data for _, data in frames(stream.text)]
        assert done == "[DONE]"
        texts = [json.loads(event)["text"] for event in events]
        assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
        assert texts[-1] == "ab cd"
        last = json.loads(events[-1])
        assert last["output_ids"] == batch[0]["output_ids"]
        assert all(json.loads(e)["meta_info"]["finish_reason"] is None for e in events[:-1])

    run(ask())


def test_tokenize_round_trip(app):
    text = "<think>Zürich 😀\n"

    async def ask():
        for name in ("prompt", "text", "content"):
            answer = (await app.post("/tokenize", {name: text})).json()
            assert answer["count"] == len(answer["tokens"])
            assert answer["max_model_len"] == 4096
        assert answer["tokens"][0] == app.tokenizer.id_of("<think>")
        back = (await app.post("/detokenize", {"tokens": answer["tokens"]})).json()
        assert back == {"text": text, "prompt": text}
        plain = await app.post("/tokenize", {"prompt": text, "parse_special": False})
        assert app.tokenizer.id_of("<think>") not in plain.json()["tokens"]
        messages = [{"role": "user", "content": "Q"}]
        chat = (await app.post("/tokenize", {"messages": messages})).json()["tokens"]
        await app.chat("Q")
        assert tuple(chat) == app.last.prompt_ids

    run(ask())


def test_every_error_has_the_four_keys(app):
    async def ask():
        answers = [
            await app.get("/nope"),
            await app.get("/v1/chat/completions"),
            await app.client.post(
                "/v1/chat/completions", content=b"{", headers={"content-type": "application/json"}
            ),
            await app.client.post(
                "/v1/chat/completions", content=b"{}", headers={"content-type": "text/plain"}
            ),
            await app.client.post(
                "/v1/chat/completions",
                content=b'{"a":1,"a":2}',
                headers={"content-type": "application/json"},
            ),
            await app.post("/v1/chat/completions", []),
            await app.chat(temperature="hot"),
            await app.chat(n=1000000),
        ]
        assert [answer.status_code for answer in answers] == [
            404,
            405,
            400,
            415,
            400,
            400,
            400,
            400,
        ]
        for answer in answers:
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert isinstance(error["message"], str)
            assert answer.headers["x-request-id"]
        assert answers[1].headers["allow"] == "POST"

    run(ask())


def test_context_overflow_uses_the_sentence_clients_look_for(make_app):
    app = make_app(context=64)

    async def ask():
        answer = await app.chat("word " * 200)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "maximum context length is 64 tokens" in error["message"]
        assert "reduce the length of the messages" in error["message"]
        fitting = (await app.chat("x", max_tokens=100000, ignore_eos=True)).json()
        assert fitting["choices"][0]["finish_reason"] == "length"
        assert fitting["usage"]["total_tokens"] == 64

    run(ask())


def test_an_engine_error_before_the_first_token_is_an_http_error(app):
    app.say("", error=EngineError("out of pages", status=400, code="too_big", param="prompt"))

    async def ask():
        for stream in (False, True):
            answer = await app.chat(stream=stream)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "too_big"

    run(ask())


def test_an_engine_error_in_a_stream_is_an_error_frame_and_done(app):
    app.say("</think>abc", error=EngineError("lost the device"))

    async def ask():
        whole = await app.chat()
        assert (whole.status_code, whole.json()["error"]["type"]) == (500, "server_error")
        stream = await app.chat(stream=True)
        assert stream.status_code == 200
        *chunks, error, done = [data for _, data in frames(stream.text)]
        assert done == "[DONE]"
        assert json.loads(error)["error"]["message"] == "lost the device"
        assert all(json.loads(c)["choices"][0]["finish_reason"] is None for c in chunks)

    run(ask())


def test_a_bug_is_a_logged_500_without_its_words(make_app, caplog):
    app = make_app()

    async def broken(request):
        raise RuntimeError("secret detail")
        yield

    app.engine.submit = broken

    async def ask():
        for fields in ({}, {"stream": True}):
            answer = await app.chat(**fields)
            assert answer.status_code == 500
            assert answer.json()["error"]["message"] == "internal error"
        assert app.service.metrics.in_flight == 0

    run(ask())
    assert "secret detail" in caplog.text
