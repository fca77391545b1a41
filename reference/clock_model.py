"""The cache decision of one decode step, slow and obvious: what kernels/csrc/core/clock.h must decide.

Written from the policy, not from the code: sets instead of bitsets, sorting instead of selection, and
the hand's way round the ring spelled out as a list. No shipped code imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True)
class Ring:
    """The slots: who lives where (key or None), second-chance marks, locked slots, and the hand."""

    owner: list[int | None]
    referenced: set[int] = field(default_factory=set[int])
    locked: set[int] = field(default_factory=set[int])
    hand: int = 0

    def copy(self) -> Ring:
        return Ring(list(self.owner), set(self.referenced), set(self.locked), self.hand)


@dataclass(frozen=True, slots=True)
class Step:
    """What a step is asked: expert ids of one layer, the slot each lives in (or None), priorities."""

    picks: Sequence[int]
    resident: Sequence[int | None]
    priority: Sequence[int]
    experts: int
    admit_limit: int
    gpu_share: float = 1.0
    dither: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided. admissions are (expert, slot, evicted key or None), in order."""

    hits: int
    invalid: int
    left: int
    admissions: tuple[tuple[int, int, int | None], ...]
    busy: frozenset[int]

    @property
    def evicted(self) -> int:
        return sum(key is not None for _, _, key in self.admissions)


def allowed(misses: int, step: Step) -> int:
    """How many of the distinct misses may be admitted; the share is computed in float32."""
    share = np.float32(misses) * np.float32(step.gpu_share) + np.float32(step.dither)
    return min(misses, int(share), step.admit_limit)


def victim(ring: Ring, busy: set[int]) -> int | None:
    """The slot that gives way; marks the hand passes are cleared and the hand moves behind it."""
    slots = len(ring.owner)
    way = [(ring.hand + i) % slots for i in range(slots)]
    free = [slot for slot in way if slot not in busy]
    if not free:
        return None
    cold = [slot for slot in free if slot not in ring.referenced]
    # With every free slot marked, the first round clears all marks and the second takes the first.
    chosen = cold[0] if cold else free[0]
    passed = free[: free.index(chosen)] if cold else free
    ring.referenced -= set(passed)
    ring.hand = (chosen + 1) % slots
    return chosen


def decide(ring: Ring, step: Step) -> Decision:
    """Decide one step. Changes the ring's marks and hand; its owners are the caller's to change."""
    valid = [i for i, pick in enumerate(step.picks) if 0 <= pick < step.experts]
    read = {slot for i in valid if (slot := step.resident[i]) is not None}
    hits = len(read - ring.locked)
    busy = ring.locked | read
    ring.referenced |= read

    first: dict[int, int] = {}
    for i in valid:
        if step.resident[i] is None:
            first.setdefault(step.picks[i], i)
    waiting = sorted(first, key=lambda expert: (-step.priority[first[expert]], first[expert]))

    admissions: list[tuple[int, int, int | None]] = []
    for expert in waiting[: allowed(len(waiting), step)]:
        slot = victim(ring, busy)
        if slot is None:
            break
        busy.add(slot)
        admissions.append((expert, slot, ring.owner[slot]))
    return Decision(
        hits=hits,
        invalid=len(step.picks) - len(valid),
        left=len(waiting) - len(admissions),
        admissions=tuple(admissions),
        busy=frozenset(busy),
    )


def apply(ring: Ring, decision: Decision, base_key: int) -> None:
    """Make the admissions true: base_key is the layer's first key."""
    for expert, slot, _ in decision.admissions:
        ring.owner[slot] = base_key + expert
