"""What the server pushes to whoever started it: JSON lines over an inherited pipe, or nothing.

{"phase": "experts", "done": 12, "total": 42}
{"ready": true, "url": "http://127.0.0.1:8080"}
{"failed": {"id": "ART-002", "message": "...", "hint": null}}
"""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any

_PERIOD_S = 0.1  # finer steps than this are not worth a system call


class Readiness:
    """The writing end. A reader that went away is no reason to fail."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._last_phase = ""
        self._last_at = 0.0
        if fd is not None:
            os.set_inheritable(fd, False)

    def progress(self, phase: str, done: int, total: int) -> None:
        """Report a load's position; calls may be frequent, most are dropped."""
        now = time.monotonic()
        edge = phase != self._last_phase or done >= total
        if (edge or now - self._last_at >= _PERIOD_S) and self._has_room():
            self._last_phase, self._last_at = phase, now
            self._write({"phase": phase, "done": done, "total": total})

    def ready(self, url: str) -> None:
        """Report that requests are served now. Ends the conversation."""
        self._write({"ready": True, "url": url})
        self.close()

    def failed(self, error_id: str, message: str, hint: str | None) -> None:
        """Report why the process is about to exit."""
        self._write({"failed": {"id": error_id, "message": message, "hint": hint}})

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _has_room(self) -> bool:
        """False when nobody has read for long: a load must not wait for its audience."""
        return self._fd is not None and bool(select.select([], [self._fd], [], 0)[1])

    def _write(self, body: dict[str, Any]) -> None:
        if self._fd is None:
            return
        try:
            os.write(self._fd, json.dumps(body).encode() + b"\n")
        except BrokenPipeError:
            self.close()
