"""Queueing, disconnects, pings, deadlines and the end of the server."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from contextlib import suppress
from itertools import pairwise

import httpx
import pytest
from stream_grammar import chat_stream, frames

from glm53_server import http_protocol, sse
from glm53ctl.plan import LimitsPlan, ScriptPlan

BODY = {"messages": [{"role": "user", "content": "Hi"}]}
CHAT = "/v1/chat/completions"


async def eventually(check, within_s=1.0):
    """Poll until `check` returns something true; fail after the deadline."""
    end_s = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < end_s, "it did not happen in time"
        await asyncio.sleep(0.01)


def test_a_full_queue_is_a_429_with_retry_after(make_app):
    app = make_app(
        script=ScriptPlan(hang_after_tokens=0), limits=LimitsPlan(max_batch=1, max_queued=2)
    )

    async def ask():
        waiting = [asyncio.create_task(app.post(CHAT, BODY)) for _ in range(3)]
        await eventually(lambda: app.service.metrics.in_flight == 3)
        await eventually(lambda: app.engine.queued == 2)
        for fields in ({}, {"stream": True}):
            refused = await app.post(CHAT, {**BODY, **fields})
            assert refused.status_code == 429
            assert refused.headers["retry-after"]
            assert refused.json()["error"]["code"] == "queue_full"
        assert (await app.get("/health")).status_code == 200
        assert (await app.post("/tokenize", {"prompt": "x"})).status_code == 200
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await eventually(lambda: app.service.metrics.in_flight == 0)

    asyncio.run(ask())


def test_many_requests_at_once_never_exceed_the_queue(make_app):
    app = make_app(
        script=ScriptPlan(tokens_per_s=500), limits=LimitsPlan(max_batch=2, max_queued=6)
    )

    async def ask():
        answers = await asyncio.gather(*(app.post(CHAT, BODY) for _ in range(100)))
        codes = [answer.status_code for answer in answers]
        assert set(codes) == {200, 429}
        assert codes.count(200) >= 8
        assert app.service.metrics.in_flight == app.engine.running == app.engine.queued == 0

    asyncio.run(ask())


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("phase", ["running", "prefilling", "queued"])
def test_a_disconnect_frees_the_place_at_once(live, stream, phase):
    hang = {"hang_after_tokens": 0} if phase != "running" else {"tokens_per_s": 50.0}
    script = ScriptPlan(text="</think>" + "word " * 500, **hang)
    app, url = live(script=script, limits=LimitsPlan(max_batch=1))

    async def leave(client):
        body = {**BODY, "stream": stream}
        with suppress(httpx.ReadTimeout):
            async with client.stream("POST", CHAT, json=body, timeout=0.3) as response:
                async for _ in response.aiter_bytes():
                    return

    async def ask():
        async with httpx.AsyncClient(base_url=url, timeout=10) as client:
            if phase == "queued":
                holder = asyncio.create_task(client.post(CHAT, json=BODY))
                await eventually(lambda: app.engine.running == 1)
            await leave(client)
            if phase == "queued":
                await eventually(lambda: app.engine.queued == 0)
                holder.cancel()
                await asyncio.gather(holder, return_exceptions=True)
            await eventually(lambda: app.engine.running == app.engine.queued == 0)
            await eventually(lambda: app.service.metrics.in_flight == 0)
            stats = (await client.get("/stats")).json()
            assert (stats["running"], stats["queued"]) == (0, 0)

    asyncio.run(ask())


def test_headers_do_not_wait_for_the_first_token_and_silence_is_pinged(make_app, monkeypatch):
    monkeypatch.setattr(sse, "HEADER_DEADLINE_S", 0.05)
    monkeypatch.setattr(sse, "PING_INTERVAL_S", 0.05)
    app = make_app(script=ScriptPlan(text="</think>Hi", tokens_per_s=3))

    async def ask():
        text = (await app.post(CHAT, {**BODY, "stream": True})).text
        assert text.count(": ping\n\n") >= 5
        (folded,), _ = chat_stream(text)
        assert folded.content == "Hi"
        body = {**BODY, "max_tokens": 9, "stream": True}
        names = [name for name, _ in frames((await app.post("/v1/messages", body)).text)]
        assert names.count("ping") >= 5

    asyncio.run(ask())


def test_hidden_reasoning_is_silence_too(make_app, monkeypatch):
    monkeypatch.setattr(sse, "PING_INTERVAL_S", 0.05)
    app = make_app(script=ScriptPlan(text="a b c d e f g h</think>Hi", tokens_per_s=100))
    body = {**BODY, "stream": True, "include_reasoning": False}
    text = asyncio.run(app.post(CHAT, body)).text
    assert text.count(": ping\n\n") >= 1


def test_a_late_failure_before_any_token_is_an_error_frame(make_app, monkeypatch):
    from glm53_server.engine.base import EngineError
    from glm53_server.engine.scripted import Script

    monkeypatch.setattr(sse, "HEADER_DEADLINE_S", 0.01)
    app = make_app(script=ScriptPlan(tokens_per_s=5))
    app.engine.replay(Script(((10,),), error=EngineError("gone", status=503)))
    response = asyncio.run(app.post(CHAT, {**BODY, "stream": True}))
    assert response.status_code == 200
    *_, error, done = [data for _, data in frames(response.text)]
    assert (json.loads(error)["error"]["message"], done) == ("gone", "[DONE]")


def test_closing_the_engine_ends_streams_with_an_error_frame(make_app):
    app = make_app(script=ScriptPlan(text="</think>" + "word " * 500, tokens_per_s=50))

    async def ask():
        running = asyncio.create_task(app.post(CHAT, {**BODY, "stream": True}))
        await eventually(lambda: app.engine.steps > 5)
        app.service.begin_drain()
        assert (await app.get("/health")).status_code == 503
        refused = await app.post(CHAT, BODY)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        await app.engine.close()
        *_, error, done = [data for _, data in frames((await running).text)]
        assert json.loads(error)["error"]["code"] == "server_shutting_down"
        assert done == "[DONE]"

    asyncio.run(ask())


def test_delivery_is_even(make_app):
    app = make_app(script=ScriptPlan(text="</think>" + "word " * 60, tokens_per_s=100))

    async def ask():
        stamps = []
        request = {**BODY, "stream": True}
        scope_done = asyncio.Event()

        async def send(message):
            if message["type"] == "http.response.body":
                stamps.append(time.monotonic())
                if not message.get("more_body"):
                    scope_done.set()

        await call_asgi(app, request, send)
        span = stamps[-1] - stamps[0]
        half = sum(stamp - stamps[0] < span / 2 for stamp in stamps) / len(stamps)
        assert 0.4 <= half <= 0.6
        assert max(b - a for a, b in pairwise(stamps)) < 0.2

    asyncio.run(ask())


async def call_asgi(app, body, send):
    sent = False

    async def receive():
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        await asyncio.Event().wait()
        return None

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": CHAT, "raw_path": CHAT.encode(), "query_string": b"",
        "root_path": "", "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    await app.asgi(scope, receive, send)


def test_a_client_that_does_not_read_holds_nobody_up(live, monkeypatch):
    monkeypatch.setattr(sse, "STALLED_CLIENT_S", 0.5)
    app, url = live(
        script=ScriptPlan(text="</think>" + "word " * 500, tokens_per_s=0), context=65536
    )
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({**BODY, "stream": True, "ignore_eos": True}).encode()
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect((host, int(port)))
        head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        reader.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        end_s = time.monotonic() + 20
        while app.engine.steps == 0 or app.engine.running:
            assert time.monotonic() < end_s
            assert httpx.get(f"{url}/health").status_code == 200
            time.sleep(0.05)
    assert app.service.metrics.in_flight == 0


def test_a_request_head_that_drips_in_is_cut_off(live, monkeypatch):
    monkeypatch.setattr(http_protocol, "HEAD_DEADLINE_S", 0.3)
    _, url = live()
    host, port = url.removeprefix("http://").split(":")

    def gone(connection, *, dripping):
        """Seconds until the server closes the connection."""
        start_s = time.monotonic()
        connection.settimeout(0.05)
        while time.monotonic() - start_s < 5:
            with suppress(TimeoutError, ConnectionError):
                if dripping:
                    connection.sendall(b"X")
                if not connection.recv(4096):
                    break
        return time.monotonic() - start_s

    request = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for dripping in (False, True):
        with socket.create_connection((host, int(port))) as connection:
            assert 0.2 < gone(connection, dripping=dripping) < 3
    with socket.create_connection((host, int(port))) as connection:
        for _ in range(3):  # a kept connection may be idle for longer than the head's deadline
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200")
            time.sleep(0.5)
        connection.sendall(b"GET /hea")
        assert gone(connection, dripping=True) < 3
    assert httpx.get(f"{url}/health").status_code == 200


def test_a_long_prompt_is_encoded_off_the_loop(make_app):
    app = make_app(context=1 << 20)
    text = "The quick brown fox jumps over 123 lazy dogs. " * 40000

    async def ask():
        request = asyncio.create_task(app.chat(text, max_tokens=1))
        longest_s = 0.0
        while not request.done():
            before_s = time.monotonic()
            await asyncio.sleep(0.002)
            longest_s = max(longest_s, time.monotonic() - before_s)
        assert (await request).json()["usage"]["prompt_tokens"] > 400_000
        assert longest_s < 0.5

    asyncio.run(ask())


def test_metrics_are_prometheus_text(make_app):
    app = make_app()

    async def ask():
        usage = (await app.post(CHAT, BODY)).json()["usage"]
        response = await app.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        values = {}
        for line in response.text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                values[name] = float(value)
        label = '{model_name="tiny"}'
        assert values[f"vllm:num_requests_running{label}"] == 0
        assert values[f"vllm:prompt_tokens_total{label}"] == usage["prompt_tokens"]
        assert values[f"vllm:generation_tokens_total{label}"] == usage["completion_tokens"]
        assert values['vllm:request_success_total{model_name="tiny",finished_reason="stop"}'] == 1
        assert values[f"vllm:e2e_request_latency_seconds_count{label}"] == 1
        buckets = [
            v for k, v in values.items() if k.startswith("vllm:time_to_first_token_seconds_bucket")
        ]
        assert buckets == sorted(buckets)
        assert buckets[-1] == 1

    asyncio.run(ask())
