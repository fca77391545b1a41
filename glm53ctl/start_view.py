"""How a start looks: one redrawn line with a bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from typing import Any

from glm53ctl import render

_BAR_CELLS = 20
_PLAIN_PERIOD_S = 5.0


class StartView:
    """Shows records of a starting instance on stderr. `close` ends the redrawn line."""

    def __init__(self) -> None:
        self._look = render.look(sys.stderr)
        self._start = time.monotonic()
        self._shown = ""
        self._shown_at = 0.0
        self._open = False

    def __call__(self, record: dict[str, Any]) -> None:
        if record["phase"] == "ready" and not self._shown and not self._open:
            return  # it served before we looked: nothing was waited for
        words = _words(record)
        if self._look.live:
            sys.stderr.write(f"\r\x1b[2K\x1b[?7l {self._line(record, words)}\x1b[?7h")
            sys.stderr.flush()
            self._open = True
            return
        now = time.monotonic()
        begins = words != self._shown
        if begins or now - self._shown_at > _PLAIN_PERIOD_S:
            self._shown, self._shown_at = words, now
            render.say(f" {self._begun(words) if begins else self._line(record, words)}")

    def close(self) -> None:
        if self._open:
            sys.stderr.write("\n")
            self._open = False

    def _begun(self, words: str) -> str:
        """A phase that begins. When it did says how long the one before took, not how far this one is."""
        return f"{words}  (after {time.monotonic() - self._start:.1f} s)"

    def _line(self, record: dict[str, Any], words: str) -> str:
        took_s = time.monotonic() - self._start
        progress = record["progress"]
        if not progress or not progress["total"]:
            return f"{words}  {took_s:.1f} s"
        done, total = progress["done"], progress["total"]
        drawn = render.bar(done / total, _BAR_CELLS, unicode=self._look.unicode)
        return f"{words}  {drawn}  {amount(done, total)}  {took_s:.1f} s"


def _words(record: dict[str, Any]) -> str:
    progress, phase = record["progress"], record["phase"]
    if progress:
        return f"loading: {progress['phase']}"
    if phase == "backoff":
        failure = record["last_failure"]
        return f"waiting to restart: {failure['summary'] if failure else ''}"
    return phase


def amount(done: int, total: int) -> str:
    """`12/42` of countable things, `62.0/125.3 GB` of what can only be bytes."""
    for unit, name in ((10**9, "GB"), (10**6, "MB")):
        if total >= unit:
            return f"{done / unit:.1f}/{total / unit:.1f} {name}"
    return f"{done}/{total}"


def duration(seconds: float) -> str:
    """As people read it: "42s", "3m12s", "4h12m", "3d04h"."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
