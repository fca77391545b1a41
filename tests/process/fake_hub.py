"""A Hugging Face hub on 127.0.0.1 with one repository, whose answers go wrong when a test says so."""

from __future__ import annotations

import hashlib
import json
import struct
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

REPO = "turboderp/GLM-5.3-Flash-exl3"
REVISION = "332ab457b709b7ba30dd9a448be5de03b80a7ac9"
_PIECE = 16 << 10


@dataclass
class Fault:
    """What one answer for one file does wrong. `after` bytes of its body are right."""

    kind: str  # drop, stall, wrong, status, redirect, no-range, slow
    after: int = 0
    seconds: float = 0.0
    status: int = 429
    headers: dict[str, str] = field(default_factory=dict)
    to: str = ""


def safetensors(payload: bytes, name: str = "t") -> bytes:
    """A whole safetensors file with one tensor of bytes."""
    entry = {"dtype": "U8", "shape": [len(payload)], "data_offsets": [0, len(payload)]}
    header = json.dumps({name: entry}).encode()
    return struct.pack("<Q", len(header)) + header + payload


class FakeHub:
    """Large files (those of `large`) are kept on a "data host": a second path that is redirected to."""

    def __init__(self, files: dict[str, bytes], *, revision: str = REVISION) -> None:
        self.files = files
        self.revision = revision
        self.faults: dict[str, list[Fault]] = {}
        self.requests: list[tuple[str, str, str | None]] = []  # method, path, range
        self.tokens: list[str | None] = []
        self.listing_faults: list[Fault] = []
        self.data_host: str | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.hub = self  # type: ignore[attr-defined]
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fetched(self) -> list[str]:
        """Names of the files whose bodies were asked for, probes of one byte left out."""
        return [
            path.rpartition("/")[2]
            for method, path, span in self.requests
            if method == "GET" and span != "bytes=0-0" and self._is_body(path)
        ]

    def large(self, name: str) -> bool:
        return name.endswith(".safetensors")

    def tree(self) -> list[dict]:
        return [self._entry(name, body) for name, body in self.files.items()]

    def _is_body(self, path: str) -> bool:
        name = path.rpartition("/")[2]
        return path.startswith("/data/") or ("/resolve/" in path and not self.large(name))

    def _entry(self, name: str, body: bytes) -> dict:
        oid = hashlib.sha1(f"blob {len(body)}\0".encode() + body).hexdigest()
        entry = {"type": "file", "path": name, "size": len(body), "oid": oid}
        if self.large(name):
            sha256 = hashlib.sha256(body).hexdigest()
            entry["lfs"] = {"oid": sha256, "size": len(body), "pointerSize": 134}
        return entry


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> FakeHub:
        return self.server.hub  # type: ignore[attr-defined]

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, self.headers.get("range")))
        self.hub.tokens.append(self.headers.get("authorization"))
        try:
            if path.startswith(f"/api/models/{REPO}/tree/"):
                self._tree()
            elif path.startswith(f"/{REPO}/resolve/"):
                self._resolve(path.split("/", 5)[5])
            elif path.startswith("/data/"):
                self._body(path.removeprefix("/data/"))
            else:
                self._status(404)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _tree(self) -> None:
        if self.hub.listing_faults:
            fault = self.hub.listing_faults.pop(0)
            return self._status(fault.status, fault.headers)
        body = json.dumps(self.hub.tree()).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return None

    def _resolve(self, name: str) -> None:
        if name not in self.hub.files:
            return self._status(404)
        if not self.hub.large(name):
            return self._body(name)
        self.send_response(302)
        self.send_header("x-repo-commit", self.hub.revision)
        self.send_header("location", f"{self.hub.data_host or self.hub.url}/data/{name}")
        self.send_header("content-length", "0")
        self.end_headers()
        return None

    def _status(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", "0")
        self.end_headers()

    def _body(self, name: str) -> None:
        body = self.hub.files[name]
        probe = self.headers.get("range") == "bytes=0-0"
        faults = self.hub.faults.get(name)
        fault = faults.pop(0) if faults and not probe else None
        if fault and fault.kind in {"status", "redirect"}:
            headers = {"location": fault.to} if fault.kind == "redirect" else fault.headers
            return self._status(302 if fault.kind == "redirect" else fault.status, headers)
        begin = self._begin(fault)
        span = body[begin:]
        self.send_response(206 if begin or probe else 200)
        self.send_header("x-repo-commit", self.hub.revision)
        if begin:
            self.send_header("content-range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        self.send_header("content-length", "1" if probe else str(len(span)))
        self.end_headers()
        self._send(span[:1] if probe else span, fault)
        return None

    def _begin(self, fault: Fault | None) -> int:
        asked = self.headers.get("range", "").removeprefix("bytes=").partition("-")[0]
        return int(asked) if asked and not (fault and fault.kind == "no-range") else 0

    def _send(self, body: bytes, fault: Fault | None) -> None:
        if fault is None or fault.kind == "no-range":
            self.wfile.write(body)
            return
        self.wfile.write(body[: fault.after])
        rest = body[fault.after :]
        match fault.kind:
            case "drop":
                self.close_connection = True
            case "stall":
                self.wfile.flush()
                time.sleep(fault.seconds)
                self.close_connection = True
            case "wrong":
                self.wfile.write(bytes(byte ^ 0xFF for byte in rest))
            case "slow":
                for at in range(0, len(rest), _PIECE):
                    self.wfile.write(rest[at : at + _PIECE])
                    time.sleep(fault.seconds)
