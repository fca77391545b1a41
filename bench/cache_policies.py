"""Cache policies in plain Python, for replay_policies.py: a policy is a score, an eviction and a gate.

score     how warm an expert is: ranks the misses of a layer, and what eviction and gate compare
eviction  which slot gives way
gate      whether a miss is worth the slot that would give way; a refused one is read in place (not
          with GhostQueue, which forgets whom it gave up)

Keys are layer * experts + expert. A layer's step calls `touch` for every distinct pick, then `place`
for each miss that the link takes, warmest first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

NEVER = 1 << 40  # a time after the end of every trace


class Score(Protocol):
    """Warmth of experts: `touch` counts a pick, `of` gives float64 warmth for int64 keys."""

    def touch(self, key: int, now: int) -> None: ...
    def of(self, keys: np.ndarray) -> np.ndarray: ...


class Frequency:
    """Picks so far, each worth half after every `half_life` steps; None never ages."""

    def __init__(self, keys: int, half_life: float | None = None) -> None:
        self.value = np.zeros(keys)
        self._half_life = half_life

    def touch(self, key: int, now: int) -> None:
        # A pick now counts 2 ** (now / half_life): the order is that of decayed counts, without decaying.
        self.value[key] += 1.0 if self._half_life is None else 2.0 ** (now / self._half_life)

    def of(self, keys: np.ndarray) -> np.ndarray:
        return self.value[keys]


class Recency:
    """The step of the last pick."""

    def __init__(self, keys: int) -> None:
        self.value = np.full(keys, -1.0)

    def touch(self, key: int, now: int) -> None:
        self.value[key] = now

    def of(self, keys: np.ndarray) -> np.ndarray:
        return self.value[keys]


class Decayed:
    """Counts of picks that lose half of their worth every `half_life` steps, brought up to date when read."""

    def __init__(self, keys: int, half_life: float) -> None:
        self._value, self._last = np.zeros(keys), np.zeros(keys)
        self._half_life = half_life
        self.now = 0

    def touch(self, key: int, now: int) -> None:
        self._value[key] = (
            self._value[key] * 2.0 ** (-(now - self._last[key]) / self._half_life) + 1
        )
        self._last[key] = self.now = now

    def age(self, keys: np.ndarray) -> np.ndarray:
        """Steps since the last pick."""
        return self.now - self._last[keys]

    def of(self, keys: np.ndarray) -> np.ndarray:
        return self._value[keys] * 2.0 ** (-self.age(keys) / self._half_life)


class FrequencyOverAge:
    """LFRU: the aged count over the steps since the last pick."""

    def __init__(self, keys: int, half_life: float) -> None:
        self._count = Decayed(keys, half_life)

    def touch(self, key: int, now: int) -> None:
        self._count.touch(key, now)

    def of(self, keys: np.ndarray) -> np.ndarray:
        return self._count.of(keys) / (self._count.age(keys) + 1)


class TwoHorizons:
    """An aged count of the last tokens, ten times, plus one of the last hundred."""

    def __init__(self, keys: int) -> None:
        self._short, self._long = Decayed(keys, 2), Decayed(keys, 64)

    def touch(self, key: int, now: int) -> None:
        self._short.touch(key, now)
        self._long.touch(key, now)

    def of(self, keys: np.ndarray) -> np.ndarray:
        return 10 * self._short.of(keys) + self._long.of(keys)


class Oracle:
    """Belady's knowledge: an expert is the warmer the sooner it is picked again.

    uses[key] are the moments (step * layers + layer) of its picks, ascending.
    """

    def __init__(self, uses: Sequence[Sequence[int]]) -> None:
        self._uses = [iter(moments) for moments in uses]
        self.value = np.array([-next(moments, NEVER) for moments in self._uses], float)

    def touch(self, key: int, now: int) -> None:
        del now
        self.value[key] = -next(self._uses[key], NEVER)

    def of(self, keys: np.ndarray) -> np.ndarray:
        return self.value[keys]


class Eviction(Protocol):
    """Slots only: who lives there is the cache's business, except where a score is asked."""

    def hit(self, slot: int) -> None: ...
    def placed(self, slot: int, key: int) -> None: ...
    def victim(self, owner: np.ndarray, busy: set[int]) -> int: ...


class Clock:
    """Second chance with a counter per slot: `most` 1 is the textbook's rule."""

    def __init__(self, slots: int, most: int = 1) -> None:
        self._credit = [0] * slots
        self._most, self._hand = most, 0

    def hit(self, slot: int) -> None:
        self._credit[slot] = min(self._most, self._credit[slot] + 1)

    def placed(self, slot: int, key: int) -> None:
        del key
        self._credit[slot] = 0

    def victim(self, owner: np.ndarray, busy: set[int]) -> int:
        del owner
        while True:
            slot = self._hand
            self._hand = (slot + 1) % len(self._credit)
            if slot in busy:
                continue
            if not self._credit[slot]:
                return slot
            self._credit[slot] -= 1


class Coldest:
    """The slot whose expert has the lowest score."""

    def __init__(self, score: Score) -> None:
        self._score = score

    def hit(self, slot: int) -> None: ...
    def placed(self, slot: int, key: int) -> None: ...

    def victim(self, owner: np.ndarray, busy: set[int]) -> int:
        scores = self._score.of(owner).astype(float)
        scores[list(busy)] = np.inf
        return int(np.argmin(scores))


class ColdestOfNext:
    """The coldest of the next `width` slots behind a hand: what a device can afford in every layer."""

    def __init__(self, score: Score, width: int) -> None:
        self._score, self._width = score, width
        self._hand = 0

    def hit(self, slot: int) -> None: ...
    def placed(self, slot: int, key: int) -> None: ...

    def victim(self, owner: np.ndarray, busy: set[int]) -> int:
        reach = min(len(owner), self._width + len(busy))
        way = [(self._hand + i) % len(owner) for i in range(reach)]
        free = [slot for slot in way if slot not in busy][: self._width]
        self._hand = (free[-1] + 1) % len(owner)
        return free[int(np.argmin(self._score.of(owner[free])))]


class GhostQueue:
    """S3-FIFO: newcomers queue in a tenth of the slots; who is picked there, or comes back soon after
    having left, gets into the main queue, where picks buy up to three more rounds."""

    def __init__(self, slots: int) -> None:
        self._small: OrderedDict[int, int] = OrderedDict()  # slot -> key
        self._main: OrderedDict[int, int] = OrderedDict()
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        self._credit = [0] * slots
        self._slots = slots

    def hit(self, slot: int) -> None:
        self._credit[slot] = min(3, self._credit[slot] + 1)

    def placed(self, slot: int, key: int) -> None:
        self._credit[slot] = 0
        if key in self._ghosts:
            del self._ghosts[key]
            self._main[slot] = key
        else:
            self._small[slot] = key

    def victim(self, owner: np.ndarray, busy: set[int]) -> int:
        del owner
        turn = 0
        while True:
            turn += 1
            # Credit is gone after four rounds of the main queue: then all in it is in use.
            large = len(self._small) > self._slots // 10 or turn > 4 * self._slots
            from_small = bool(self._small) and (large or not self._main)
            queue = self._small if from_small else self._main
            slot, key = queue.popitem(last=False)
            if slot in busy:
                self._main[slot] = key
            elif self._credit[slot]:
                self._credit[slot] -= 1
                self._main[slot] = key
            else:
                if from_small:
                    self._ghosts[key] = None
                    if len(self._ghosts) > self._slots:
                        self._ghosts.popitem(last=False)
                return slot


Gate = Callable[[int, int], bool]
"""gate(key, victim_key): is the miss worth the slot of the other?"""


def admit_all(*_: int) -> bool:
    """Every miss is worth a slot."""
    return True


def warmer(score: Score, factor: float) -> Gate:
    """Only what is `factor` times as warm as the victim: without it two equals change places for ever."""

    def gate(key: int, victim: int) -> bool:
        own, other = score.of(np.array([key, victim]))
        return bool(own >= factor * other)

    return gate


class Policy:
    """A cache of `slots` under one policy. `second_touch`: a miss gets a slot only if the same expert
    was already picked in the last that many steps."""

    def __init__(
        self,
        slots: int,
        score: Score,
        eviction: Eviction,
        gate: Gate = admit_all,
        second_touch: int | None = None,
    ) -> None:
        self.slots = slots
        self.slot_of: dict[int, int] = {}
        self.owner = np.full(slots, -1, np.int64)
        self._score, self._eviction, self._gate = score, eviction, gate
        self._window = second_touch
        self._last: dict[int, int] = {}
        self._fresh: set[int] = set()

    def touch(self, keys: Sequence[int], now: int) -> tuple[list[int], list[int], set[int]]:
        """Distinct picks of one layer at one moment: (hits, misses with the warmest first, slots in use)."""
        misses: list[int] = []
        hits: list[int] = []
        busy: set[int] = set()
        for key in keys:
            self._score.touch(key, now)
            slot = self.slot_of.get(key)
            if slot is None:
                misses.append(key)
            else:
                hits.append(key)
                busy.add(slot)
                self._eviction.hit(slot)
        rank = dict(zip(misses, self._score.of(np.array(misses, int)).tolist(), strict=True))
        misses.sort(key=lambda key: -rank[key])
        if self._window is not None:
            self._fresh = {k for k in misses if now - self._last.get(k, -NEVER) > self._window}
            for key in keys:
                self._last[key] = now
        return hits, misses, busy

    def place(self, key: int, busy: set[int]) -> bool:
        """Give a miss a slot, if the policy thinks it worth one. busy gets the slot."""
        if key in self._fresh or len(busy) >= self.slots:
            return False
        if len(self.slot_of) < self.slots:
            slot = len(self.slot_of)
        else:
            slot = self._eviction.victim(self.owner, busy)
            victim = int(self.owner[slot])
            if not self._gate(key, victim):
                return False
            del self.slot_of[victim]
        self.owner[slot] = key
        self.slot_of[key] = slot
        self._eviction.placed(slot, key)
        busy.add(slot)
        return True
