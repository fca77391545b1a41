"""The readiness pipe: JSON lines a server child pushes to its supervisor.

    {"phase": "experts", "done": 12, "total": 42}          any number of times
    {"ready": true, "url": "http://127.0.0.1:8080"}        once, when it serves
    {"failed": {"id": "ART-002", "message": "...", "hint": null}}   once, before a permanent exit

A line that is none of these is ignored: a child must not be able to crash its supervisor.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, cast

from glm53ctl.supervisor.classify import Report

_MAX_LINE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is. `total` 0: unknown."""

    phase: str
    done: int
    total: int

    @property
    def words(self) -> str:
        return f"{self.phase} {self.done}/{self.total}" if self.total else self.phase


@dataclass(frozen=True, slots=True)
class Serving:
    url: str


Message = LoadProgress | Serving | Report


def parse(line: bytes) -> Message | None:
    """One line of the pipe; None for anything that does not belong there."""
    try:
        body = json.loads(line)
        return _message(cast("dict[str, Any]", body)) if isinstance(body, dict) else None
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def _message(body: dict[str, Any]) -> Message | None:
    if body.get("ready") is True:
        return Serving(str(body["url"]))
    if "failed" in body:
        failed = body["failed"]
        hint = failed["hint"]
        return Report(
            str(failed["id"]), str(failed["message"]), None if hint is None else str(hint)
        )
    return LoadProgress(str(body["phase"]), int(body["done"]), int(body["total"]))


class ReadyPipe:
    """The supervisor's end. `fd` is non-blocking and owned by this object."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.closed = False
        self._rest = b""

    def read(self) -> list[Message]:
        """Everything that has arrived. Sets `closed` at the end of the stream; never blocks."""
        chunks = [self._rest]
        while not self.closed:
            try:
                chunk = os.read(self.fd, 65536)
            except BlockingIOError:
                break
            if not chunk:
                self.close()
            chunks.append(chunk)
        *lines, self._rest = b"".join(chunks).split(b"\n")
        self._rest = self._rest[-_MAX_LINE_BYTES:]
        return [message for line in lines if (message := parse(line)) is not None]

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self.fd)
