"""HTTP for the stand-alone bench scripts, with the standard library alone.

One `Server` per URL: JSON in and out, and server-sent events with the time each one arrived. Proxies
of the environment are not used, so that what is timed is the server and not a proxy.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TIMEOUT_S = 3600.0


class ServerError(Exception):
    """The server refused, failed or does not answer; the message is for people. `status` 0: no answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """A server by its URL (with or without /v1), and the key it wants, if any."""

    def __init__(self, url: str, api_key_file: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key_file:
            key = Path(api_key_file).read_text(encoding="utf-8").split()[0]
            self._headers["Authorization"] = f"Bearer {key}"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> Any:
        with self._open(path, None) as answer:
            return json.load(answer)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        with self._open(path, body) as answer:
            return json.load(answer)

    def events(self, path: str, body: dict[str, Any]) -> Iterator[tuple[float, dict[str, Any]]]:
        """(seconds on the monotonic clock, event) for every event of a stream, up to [DONE]."""
        with self._open(path, {**body, "stream": True}) as answer:
            for line in answer:
                now = time.perf_counter()
                data = line.decode("utf-8", "replace").strip().partition("data:")[2].strip()
                if data == "[DONE]":
                    return
                if data:
                    event = json.loads(data)
                    if "error" in event:
                        raise ServerError(f"{path}: {_words(event['error'])}")
                    yield now, event

    def _open(self, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self._headers)
        try:
            return self._opener.open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as err:
            text = err.read(4096).decode("utf-8", "replace")
            raise ServerError(f"{path}: HTTP {err.code}: {_complaint(text)}", err.code) from err
        except (urllib.error.URLError, OSError) as err:
            reason = getattr(err, "reason", err)
            raise ServerError(f"no answer from {self.url}: {reason}") from err


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """--url and --api-key-file, the same in every script."""
    parser.add_argument("--url", required=True, help="http://HOST:PORT of the server")
    parser.add_argument("--api-key-file", metavar="FILE", help="file that holds the API key")


def write_json(path: str | Path, body: object) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def _complaint(text: str) -> str:
    try:
        return _words(json.loads(text).get("error", text))
    except (ValueError, AttributeError):
        return text[:200]


def _words(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
