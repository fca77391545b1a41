"""Counters of the HTTP side: totals for /stats, and histograms for /metrics.

Single-threaded: only the event loop writes here.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from glm53_server.pipeline import Usage

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_TOKENS = (1, 10, 50, 100, 500, 1000, 5000, 10000, 50000, 100000, 500000, 1000000)


class Histogram:
    """Cumulative buckets, as Prometheus wants them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> list[int]:
        """Counts of values <= each bound, then of all values."""
        return list(accumulate(self._counts))


@dataclass(slots=True)
class Metrics:
    """What the server has done since it started."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    in_flight: int = 0  # generations submitted and not over
    finished: Counter[str] = field(default_factory=Counter[str])
    first_token_s: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    between_tokens_s: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    whole_s: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    prompt_size: Histogram = field(default_factory=lambda: Histogram(_TOKENS))
    output_size: Histogram = field(default_factory=lambda: Histogram(_TOKENS))

    def clock(self, prompt_tokens: int) -> RequestClock:
        """Start the clock of one generation."""
        self.requests += 1
        self.prompt_tokens += prompt_tokens
        self.prompt_size.add(prompt_tokens)
        return RequestClock(self)


class RequestClock:
    """Times one generation and reports it once."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._start_s = self._last_s = time.monotonic()
        self._tokens = 0
        self._over = False

    def tokens(self, count: int) -> None:
        """`count` ids arrived together."""
        now_s, metrics = time.monotonic(), self._metrics
        histogram = metrics.between_tokens_s if self._tokens else metrics.first_token_s
        histogram.add((now_s - self._last_s) / count if self._tokens else now_s - self._start_s)
        self._last_s = now_s
        self._tokens += count
        metrics.completion_tokens += count

    def ended(self, reason: str, usage: Usage | None = None) -> None:
        """The generation is over; later calls are ignored."""
        if self._over:
            return
        self._over = True
        self._metrics.finished[reason] += 1
        self._metrics.whole_s.add(time.monotonic() - self._start_s)
        self._metrics.output_size.add(self._tokens)
        if usage is not None:
            self._metrics.cached_tokens += usage.cached
