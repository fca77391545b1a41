"""Who may ask, what they may send, and what never comes back."""

from __future__ import annotations

import asyncio
import json

import pytest

from glm53_server.routes import base
from glm53ctl.errors import UsageError
from glm53ctl.plan import LimitsPlan, ListenPlan

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hi"}]}
JSON = {"content-type": "application/json"}


@pytest.fixture
def locked(make_app, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# comment\nfirst-key\nsecond-key\n")
    return make_app(listen=ListenPlan("0.0.0.0", 8080, str(keys)))


def test_a_key_guards_everything_but_health(locked):
    async def ask():
        paths = ["/v1/models", "/stats", "/server_info", "/metrics", "/openapi.json", "/", "/nope"]
        for path in paths:
            refused = await locked.get(path)
            assert refused.status_code == 401, path
            assert refused.headers["www-authenticate"] == "Bearer"
            assert refused.json()["error"]["code"] == "invalid_api_key"
        for path in ("/tokenize", "/detokenize", "/generate", CHAT, "/v1/messages"):
            assert (await locked.post(path, {})).status_code == 401, path
        assert (await locked.get("/health")).status_code == 200
        for headers in (
            {"authorization": "Bearer first-key"},
            {"authorization": "bearer second-key"},
            {"x-api-key": "second-key"},
        ):
            assert (await locked.get("/v1/models", headers=headers)).status_code == 200
            assert (await locked.post(CHAT, BODY, headers=headers)).status_code == 200
        for wrong in (b"first-kez", b"", b"# comment", "schlüssel".encode(), b"\xff", b"x" * 10000):
            headers = {"authorization": b"Bearer " + wrong}
            assert (await locked.get("/v1/models", headers=headers)).status_code == 401

    asyncio.run(ask())


def test_beyond_loopback_a_key_is_required(make_app, tmp_path):
    for host in ("0.0.0.0", "192.168.1.5", "::", "example.org"):
        with pytest.raises(UsageError, match="needs an API key"):
            make_app(listen=ListenPlan(host))
    empty = tmp_path / "keys"
    empty.write_text("\n# nothing\n")
    for path in (empty, tmp_path / "missing"):
        with pytest.raises(UsageError, match="API key file"):
            make_app(listen=ListenPlan("0.0.0.0", 8080, str(path)))
    make_app(listen=ListenPlan("::1"))


def test_foreign_hosts_and_origins_are_refused_without_a_key(app):
    async def ask():
        for host in (
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
            "[bad",
        ):
            refused = await app.get("/v1/models", headers={"host": host})
            assert refused.status_code == 403, host
            assert refused.json()["error"]["type"] == "permission_error"
        for host in ("localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080", "LOCALHOST"):
            assert (await app.get("/v1/models", headers={"host": host})).status_code == 200, host
        for origin in ("https://evil.example", "http://localhost.evil.example", "null", "file://"):
            headers = {"origin": origin}
            assert (await app.post(CHAT, BODY, headers=headers)).status_code == 403, origin
        local = await app.post(CHAT, BODY, headers={"origin": "http://localhost:3000"})
        assert local.status_code == 200
        assert not [name for name in local.headers if name.startswith("access-control")]
        preflight = await app.client.options(CHAT, headers={"origin": "http://localhost:3000"})
        assert preflight.status_code == 405

    asyncio.run(ask())


def test_bodies_are_bounded(make_app):
    app = make_app(limits=LimitsPlan(max_body_bytes=1000))

    async def ask():
        large = json.dumps({"prompt": "x" * 2000})
        told = await app.client.post("/v1/completions", content=large, headers=JSON)

        async def trickle():
            for start in range(0, len(large), 100):
                yield large[start : start + 100].encode()

        untold = await app.client.post("/v1/completions", content=trickle(), headers=JSON)
        for answer in (told, untold):
            assert answer.status_code == 413
            assert answer.json()["error"]["code"] == "request_too_large"
        lying = await app.client.post(
            "/v1/completions", content=b"{}", headers={**JSON, "content-length": "9" * 30}
        )
        assert lying.status_code == 413
        assert (await app.post(CHAT, BODY)).status_code == 200

    asyncio.run(ask())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b'{"messages": NaN}',
        b'{"temperature": Infinity}',
        b'{"messages":[{"role":"user","content":"\\ud83d"}]}',
        b'{"messages":[{"role":"user","content":"\xed\xa0\xbd"}]}',
        b'{"a":1,"a":2}',
        b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"max_tokens":' + b"9" * 5000 + b"}",
        b'{"messages":[{"role":"user","content":"x"}]} trailing',
    ],
    ids=range(16),
)
def test_hostile_json_is_a_400(app, body):
    async def ask():
        for path in (
            CHAT,
            "/v1/completions",
            "/generate",
            "/v1/messages",
            "/v1/responses",
            "/tokenize",
        ):
            answer = await app.client.post(path, content=body, headers=JSON)
            assert answer.status_code == 400, path
            assert len(answer.content) < 2000
        assert (await app.post(CHAT, BODY)).status_code == 200

    asyncio.run(ask())


def test_a_slow_body_has_a_deadline(app, monkeypatch):
    monkeypatch.setattr(base, "_BODY_DEADLINE_S", 0.1)

    async def drip():
        for _ in range(50):
            yield b" "
            await asyncio.sleep(0.05)

    answer = asyncio.run(app.client.post(CHAT, content=drip(), headers=JSON))
    assert answer.status_code == 408
    assert answer.json()["error"]["code"] == "request_timeout"


def test_other_media_types_are_refused(app):
    async def ask():
        for headers in (
            {"content-type": "text/plain"},
            {"content-type": "application/jsonx"},
            {"content-type": "multipart/form-data"},
            {},
            {**JSON, "content-encoding": "gzip"},
        ):
            answer = await app.client.post(CHAT, content=b"{}", headers=headers)
            assert answer.status_code == 415, headers
        body = json.dumps(BODY)
        charset = {"content-type": "application/json; charset=utf-8"}
        assert (await app.client.post(CHAT, content=body, headers=charset)).status_code == 200

    asyncio.run(ask())


def test_request_ids_are_echoed_only_when_sane(app):
    async def ask():
        for sent, same in [
            ("abc-123", True),
            ("x" * 128, True),
            ("x" * 129, False),
            ("a b", False),
        ]:
            answer = await app.get("/health", headers={"x-request-id": sent})
            assert (answer.headers["x-request-id"] == sent) is same
        answer = await app.post(CHAT, BODY, headers={"x-request-id": "my-id"})
        assert answer.json()["id"] == "chatcmpl-my-id"

    asyncio.run(ask())


def test_errors_never_echo_what_was_sent(app):
    secret = "s3cr3t" * 50

    async def ask():
        for body in (
            {**BODY, "temperature": secret},
            {"messages": [{"role": secret, "content": "x"}]},
            {**BODY, "stop": [secret] * 20},
            {**BODY, "response_format": {"type": secret}},
            {**BODY, "tool_choice": secret},
        ):
            answer = await app.post(CHAT, body)
            assert answer.status_code == 400
            assert secret not in answer.text

    asyncio.run(ask())


def test_a_key_is_never_logged(locked, caplog):
    with caplog.at_level("DEBUG"):
        asyncio.run(locked.get("/v1/models", headers={"authorization": "Bearer first-key"}))
        asyncio.run(locked.get("/v1/models?api_key=first-key"))
    ours = [r.getMessage() for r in caplog.records if not r.name.startswith("http")]
    assert ours
    assert "first-key" not in "".join(ours)
    assert "first-key" not in repr(locked.service) + repr(locked.asgi.user_middleware)


def test_logs_have_one_line_per_request(app, caplog):
    with caplog.at_level("INFO", logger="glm53_server.access"):
        asyncio.run(app.get("/nope%0aINJECTED%1b[31m"))
    (record,) = [r for r in caplog.records if r.name == "glm53_server.access"]
    assert "\n" not in record.getMessage()
    assert "\x1b" not in record.getMessage()
    assert " 404 " in record.getMessage()
