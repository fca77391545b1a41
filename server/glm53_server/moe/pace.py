"""How many experts to look ahead: as many as make the steps shortest, found by trying.

A copy brings bytes while the link is idle, but it also slows the launches of the kernels beside it, and a
wrong guess brings nothing. What is best depends on the card, the link, the number of streams and the text,
so the steps themselves decide. Pure; times in seconds, from the caller's clock.
"""

from __future__ import annotations

from statistics import median

MOST = 4  # experts per layer
WINDOW = 12  # steps between two decisions; their median is what they took
GAIN = 0.01  # a neighbour must be so much faster to be taken
PATIENCE = 64  # windows between two trials, at most
_FRESH = 0.5  # weight of the newest window


class Pace:
    """The number for decode steps of one kind: the best one so far, and now and then a neighbour."""

    def __init__(self, start: int) -> None:
        self.best = self.limit = max(0, min(start, MOST))
        self.took_s: dict[int, float] = {}  # of what was tried: one step, slowly averaged
        self._steps: list[float] = []
        self._last_s: float | None = None
        self._direction = 1
        self._rest = self._left = 1

    def step(self, now_s: float) -> int:
        """A step begins; the one before ended. Returns how many experts to look ahead in it."""
        if self._last_s is not None:
            self._steps.append(now_s - self._last_s)
        self._last_s = now_s
        if len(self._steps) == WINDOW:
            self._decide(median(self._steps))
            self._steps.clear()
        return self.limit

    def pause(self) -> None:
        """Something else comes between: the time until the next step says nothing."""
        self._last_s = None

    def _decide(self, took_s: float) -> None:
        if self.limit == self.best:
            before_s = self.took_s.get(self.best, took_s)
            self.took_s[self.best] = before_s + _FRESH * (took_s - before_s)
            self._left -= 1
            if self._left <= 0:
                self.limit = self._neighbour()
            return
        self.took_s[self.limit] = took_s
        if took_s < self.took_s[self.best] * (1 - GAIN):
            self.best, self._rest = self.limit, 1
        else:
            self.limit, self._direction = self.best, -self._direction
            self._rest = min(2 * self._rest, PATIENCE)
        self._left = self._rest

    def _neighbour(self) -> int:
        if not 0 <= self.best + self._direction <= MOST:
            self._direction = -self._direction
        return self.best + self._direction
