"""The cache decision of one decode step, slow and obvious: what kernels/csrc/core/cache_policy.h must decide.

Written from the policy, not from the code: sets instead of bitsets, sorting instead of selection, and
the hand's way round the ring spelled out as a list. No shipped code imports it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

WINDOW = 16  # slots that a victim is chosen from
HALF_LIFE = 64  # decode steps
ONE_PICK = 1 << 16
MOST_HEAT = (1 << 31) - 1


def aged(heat: int, age: int, fraction_bits: int = 0) -> int:
    """Heat after `age` more steps, in units of 2 ** -fraction_bits, rounded down. Within a half-life a
    parabola in 65536ths stands for the power of two."""
    halvings, rest = divmod(age, HALF_LIFE)
    kept = 65536 - rest * (44032 - 176 * rest) // 64
    return heat * kept * 2**fraction_bits >> 16 + halvings


@dataclass(slots=True)
class Heat:
    """Aged picks of every key that was picked: (heat as of its last pick, step of that pick)."""

    known: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])

    def now(self, key: int, now: int) -> int:
        """Heat of a key today."""
        heat, last = self.known.get(key, (0, 0))
        return aged(heat, (now - last) % 2**32)

    def warmth(self, key: int | None, now: int) -> int:
        """What a slot with this key is worth; an empty one is colder than all others."""
        if key is None:
            return -1
        heat, last = self.known.get(key, (0, 0))
        age = (now - last) % 2**32
        return aged(heat, age, fraction_bits=32) // (age + 1)

    def pick(self, keys: Iterable[int], now: int) -> None:
        """Every pick of a step counts, also several of one key."""
        for key, picks in Counter(keys).items():
            self.known[key] = (min(MOST_HEAT, self.now(key, now) + picks * ONE_PICK), now)


@dataclass(slots=True)
class Ring:
    """The slots: who lives where (key or None), locked slots, the hand; and the heat of all keys."""

    owner: list[int | None]
    locked: set[int] = field(default_factory=set[int])
    hand: int = 0
    heat: Heat = field(default_factory=Heat)

    def copy(self) -> Ring:
        return Ring(list(self.owner), set(self.locked), self.hand, Heat(dict(self.heat.known)))


@dataclass(frozen=True, slots=True)
class Step:
    """What a step is asked: expert ids of one layer at one moment. lookahead: they are a guess, best
    first, and count as no picks."""

    layer: int
    picks: Sequence[int]
    now: int
    experts: int
    admit_limit: int
    gpu_share: float = 1.0
    dither: float = 0.0
    lookahead: bool = False

    def key(self, pick: int) -> int | None:
        return self.layer * self.experts + pick if 0 <= pick < self.experts else None


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


def resident(ring: Ring, step: Step) -> list[int | None]:
    """The slot of each pick's expert, if any."""
    slot_of = {key: slot for slot, key in enumerate(ring.owner) if key is not None}
    return [
        slot_of.get(key) if (key := step.key(pick)) is not None else None for pick in step.picks
    ]


def allowed(misses: int, step: Step) -> int:
    """How many of the distinct misses may be admitted; the share is computed in float32."""
    share = np.float32(misses) * np.float32(step.gpu_share) + np.float32(step.dither)
    return min(misses, int(share), step.admit_limit)


def victim(ring: Ring, busy: set[int], now: int) -> int | None:
    """The slot that gives way: the coldest of the next free ones. The hand moves behind them."""
    slots = len(ring.owner)
    way = [(ring.hand + i) % slots for i in range(slots)]
    window = [slot for slot in way if slot not in busy][:WINDOW]
    if not window:
        return None
    ring.hand = (window[-1] + 1) % slots
    return min(window, key=lambda slot: ring.heat.warmth(ring.owner[slot], now))


def decide(ring: Ring, step: Step) -> Decision:
    """Decide one step. Changes the ring's heat and hand; its owners are the caller's to change."""
    places = resident(ring, step)
    keys = [step.key(pick) for pick in step.picks]
    read = {slot for slot in places if slot is not None}
    busy = ring.locked | read

    first: dict[int, int] = {}
    for i, key in enumerate(keys):
        if key is not None and places[i] is None:
            first.setdefault(key, i)
    waiting = sorted(first, key=lambda key: first[key])
    if not step.lookahead:
        waiting.sort(key=lambda key: -ring.heat.now(key, step.now))
        ring.heat.pick((key for key in keys if key is not None), step.now)

    admissions: list[tuple[int, int, int | None]] = []
    for key in waiting[: allowed(len(waiting), step)]:
        slot = victim(ring, busy, step.now)
        if slot is None:
            break
        busy.add(slot)
        admissions.append((key - step.layer * step.experts, slot, ring.owner[slot]))
    return Decision(
        hits=len(read - ring.locked),
        invalid=keys.count(None),
        left=len(waiting) - len(admissions),
        admissions=tuple(admissions),
        busy=frozenset(busy),
    )


def apply(ring: Ring, decision: Decision, base_key: int) -> None:
    """Make the admissions true: base_key is the layer's first key."""
    for expert, slot, _ in decision.admissions:
        ring.owner[slot] = base_key + expert
