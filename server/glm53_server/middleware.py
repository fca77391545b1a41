"""Before any route: request ids, who may ask, and how much they may send. Plain ASGI.

Without a key only this machine may ask: the Host must be a loopback name and a browser's Origin too,
which stops pages of other sites and DNS rebinding. With a key every route but /health needs it.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glm53_server import api_errors
from glm53_server.api_errors import ApiError

log = logging.getLogger("glm53_server.access")

_OPEN_PATHS = frozenset({"/health", "/ready"})
_POLLED_PATHS = frozenset({"/health", "/ready", "/stats", "/metrics"})  # asked every second or so
_SANE_ID = re.compile(r"[!-~]{1,128}")
_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json\s*(?:;|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask. `keys` are digests; without any, `hosts` are the Host names that are served."""

    keys: tuple[bytes, ...] = field(repr=False)
    hosts: frozenset[str]
    max_body_bytes: int

    def check(self, method: str, path: str, headers: Headers) -> None:
        """Raises ApiError for a request that goes no further."""
        if path in _OPEN_PATHS:
            return
        if self.keys:
            self._check_key(headers)
        else:
            self._check_local(headers)
        if method == "POST":
            self._check_body(headers)

    def _check_key(self, headers: Headers) -> None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        offered = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = key_digest(offered)
        known = False
        for key in self.keys:  # every key is compared, so that time tells nothing
            known |= hmac.compare_digest(key, digest)
        if not known:
            raise ApiError("a valid API key is required", 401, "invalid_api_key")

    def _check_local(self, headers: Headers) -> None:
        if _host_name(f"//{headers.get('host', '')}") not in self.hosts:
            raise ApiError("this Host is not served without an API key", 403, "host_not_allowed")
        origin = headers.get("origin")
        if origin is not None and _host_name(origin) not in self.hosts:
            raise ApiError("requests from this Origin are refused", 403, "origin_not_allowed")

    def _check_body(self, headers: Headers) -> None:
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise ApiError("compressed bodies are not supported", 415, "unsupported_media_type")
        if not _JSON.match(headers.get("content-type", "")):
            raise ApiError(
                "the Content-Type must be application/json", 415, "unsupported_media_type"
            )
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise ApiError("the Content-Length is not a number", 400, "invalid_value")
        if len(length) > 18 or int(length) > self.max_body_bytes:
            raise self.too_large()

    def too_large(self) -> ApiError:
        return ApiError(
            f"the body is larger than {self.max_body_bytes} bytes", 413, "request_too_large"
        )


def key_digest(key: str) -> bytes:
    """What a key is kept and compared as."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def is_loopback(host: str) -> bool:
    """True for an address of this machine's loopback interface."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _host_name(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


class Gate:
    """The outermost middleware."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        identity = _identity(headers)
        scope.setdefault("state", {})["request_id"] = identity
        answer = _Answer(send, identity)
        start_s = time.monotonic()
        try:
            self._access.check(scope["method"], scope["path"], headers)
        except ApiError as err:
            await _error(scope, err)(scope, receive, answer)
        else:
            await self._app(scope, _Counted(receive, self._access), answer)
        polled = scope["path"] in _POLLED_PATHS and answer.status == 200
        log.log(
            logging.DEBUG if polled else logging.INFO,
            "%s %s %s %.0fms %s",
            scope["method"],
            _printable(scope["path"]),
            answer.status,
            (time.monotonic() - start_s) * 1000,
            identity,
        )


class _Answer:
    """Adds the request id to the response and notes its status."""

    def __init__(self, send: Send, identity: str) -> None:
        self._send = send
        self._identity = identity
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)["x-request-id"] = self._identity
        await self._send(message)


class _Counted:
    """Stops reading a body that turns out larger than it may be."""

    def __init__(self, receive: Receive, access: Access) -> None:
        self._receive = receive
        self._access = access
        self._bytes = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            if self._bytes > self._access.max_body_bytes:
                raise self._access.too_large()
        return message


def _identity(headers: Headers) -> str:
    offered = headers.get("x-request-id", "")
    return offered if _SANE_ID.fullmatch(offered) else secrets.token_hex(12)


def _error(scope: Scope, error: ApiError) -> ASGIApp:
    return api_errors.response(error, anthropic=scope["path"].startswith("/v1/messages"))


def _printable(text: str) -> str:
    return text[:200].encode("unicode_escape").decode()


def digests(keys: Sequence[str]) -> tuple[bytes, ...]:
    """Digests of the keys in a key file: one a line, blank lines and `#` comments aside."""
    lines = (line.strip() for line in keys)
    return tuple(key_digest(line) for line in lines if line and not line.startswith("#"))
