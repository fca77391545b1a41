"""How many experts to look ahead: as many as make the steps shortest, found by trying.

A copy brings bytes while the link is idle, but it also slows the launches of the kernels beside it, and a
wrong guess brings nothing. What is best depends on the card, the link, the number of streams and the text,
so the steps themselves decide. Pure; times in seconds, from the caller's clock.
"""

from __future__ import annotations

from statistics import median

MOST = 4  # experts per layer
WINDOW = 16  # steps between two decisions; their median is what they took
GAIN = 0.02  # another number must be so much faster to be taken
PATIENCE = 64  # windows between two trials, at most
_FRESH = 0.5  # weight of the newest window


class Pace:
    """The number for decode steps of one kind: the best one so far, and now and then another for comparison."""

    def __init__(self, start: int) -> None:
        self._start = max(0, min(start, MOST))
        self.best = self.limit = self._start
        self.took_s: dict[int, float] = {}  # of what was tried: one step, slowly averaged
        self._steps: list[float] = []
        self._last_s: float | None = None
        self._untried = self._others()
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
        before_s = self.took_s.get(self.limit, took_s)
        if self.limit == self.best:
            self.took_s[self.best] = before_s + _FRESH * (took_s - before_s)
            self._left -= 1
            if self._left <= 0:
                self.limit = self._untried.pop(0)
            return
        self.took_s[self.limit] = took_s
        if took_s < self.took_s[self.best] * (1 - GAIN):
            self.best, self._rest = self.limit, 1
            self._untried = self._others()
        elif not self._untried:
            self._rest = min(2 * self._rest, PATIENCE)
            self._untried = self._others()
        self.limit, self._left = self.best, self._rest

    def _others(self) -> list[int]:
        """What the best is compared with: none at all, because the first copy has a price of its own that
        the others share, and the neighbours. Beside none, what the start was.
        """
        wanted = (0 if self.best else self._start, self.best + 1, self.best - 1)
        return [n for n in dict.fromkeys(wanted) if 0 <= n <= MOST and n != self.best]
