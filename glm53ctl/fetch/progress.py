"""How far a download is: bytes, rate and time left, as one redrawn line or as lines now and then."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from glm53ctl import render
from glm53ctl.start_view import duration

_BAR_CELLS = 20
_PLAIN_PERIOD_S = 10.0
_DRAW_PERIOD_S = 0.1
_TRUST_S = 5.0  # an estimate from less than this is a guess
_HALF_LIFE_S = 10.0


class Meter:
    """Counts bytes from any thread. `rate` is a moving average of the bytes that arrived here."""

    def __init__(self, total_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total_bytes = total_bytes
        self.done_bytes = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._started = self._sampled = clock()
        self._sampled_bytes = 0
        self._rate: float | None = None

    def add(self, count: int) -> None:
        with self._lock:
            self.done_bytes += count

    def start(self, done_bytes: int) -> None:
        """Bytes that were here before; they are done, but say nothing about the rate."""
        with self._lock:
            self.done_bytes = self._sampled_bytes = done_bytes
            self._started = self._sampled = self._clock()

    def sample(self) -> None:
        """Update the rate; call it a few times a second."""
        now = self._clock()
        with self._lock:
            passed_s, moved = now - self._sampled, self.done_bytes - self._sampled_bytes
            if passed_s <= 0:
                return
            self._sampled, self._sampled_bytes = now, self.done_bytes
            if moved < 0:
                return  # a file started over
            share = 1 - 0.5 ** (passed_s / _HALF_LIFE_S)
            current = moved / passed_s
            self._rate = (
                current if self._rate is None else self._rate + share * (current - self._rate)
            )

    @property
    def rate_bytes_per_s(self) -> float:
        return self._rate or 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds to go; None until there is enough to tell."""
        if self._clock() - self._started < _TRUST_S or self.rate_bytes_per_s < 1:
            return None
        return max(0.0, (self.total_bytes - self.done_bytes) / self.rate_bytes_per_s)


class DownloadView:
    """Shows a meter on stderr; notes stay above the line."""

    def __init__(self, word: str, meter: Meter) -> None:
        self._word = word
        self._meter = meter
        self._look = render.look(sys.stderr)
        self._lock = threading.Lock()
        self._shown_at = self._drawn_at = float("-inf")
        self._open = False

    def draw(self, files: str, *, last: bool = False) -> None:
        """Show the state, when it is time to. `files` says how many are through."""
        with self._lock:
            now = time.monotonic()
            if now - self._drawn_at < _DRAW_PERIOD_S and not last:
                return
            self._drawn_at = now
            self._meter.sample()
            if self._look.live:
                sys.stderr.write(f"\r\x1b[2K {self._line(files)}")
                sys.stderr.flush()
                self._open = True
            elif last or now - self._shown_at >= _PLAIN_PERIOD_S:
                self._shown_at = now
                render.say(f" {self._line(files)}")

    def note(self, text: str) -> None:
        """One line that stays."""
        with self._lock:
            self._end_line()
            render.say(f"   {text}")

    def close(self) -> None:
        with self._lock:
            self._end_line()

    def _end_line(self) -> None:
        if self._open:
            sys.stderr.write("\n")
            self._open = False

    def _line(self, files: str) -> str:
        meter = self._meter
        share = meter.done_bytes / meter.total_bytes if meter.total_bytes else 1.0
        drawn = render.bar(share, _BAR_CELLS, unicode=self._look.unicode)
        done = f"{_size(meter.done_bytes)} of {_size(meter.total_bytes)}"
        left_s = meter.left_s
        left = "" if left_s is None else f"  {duration(left_s)} left"
        return f"{self._word}  {drawn}  {done}  {files}  {_size(meter.rate_bytes_per_s)}/s{left}"


def _size(count: float) -> str:
    return render.gigabytes(count) if count >= 1e9 else f"{count / 1e6:.1f} MB"
