"""The policies that replay_policies.py compares, by name."""

from __future__ import annotations

from collections.abc import Callable

from cache_policies import (
    Clock,
    Coldest,
    ColdestOfNext,
    Frequency,
    FrequencyOverAge,
    GhostQueue,
    Oracle,
    Policy,
    Recency,
    Score,
    TwoHorizons,
    warmer,
)

Make = Callable[[int, int, list[list[int]]], Policy]
"""make(slots, keys, uses): a fresh policy."""


def clock(most: int = 1, touch: int | None = None) -> Make:
    """Second chance with counters up to `most`; newcomers only at their second pick in `touch` steps."""

    def make(slots: int, keys: int, _: list[list[int]]) -> Policy:
        return Policy(slots, Frequency(keys), Clock(slots, most), second_touch=touch)

    return make


def ghosts(slots: int, keys: int, _: list[list[int]]) -> Policy:
    return Policy(slots, Frequency(keys), GhostQueue(slots))


def coldest(
    score: Callable[..., Score], *args: float, factor: float = 0, touch: int | None = None
) -> Make:
    """The coldest goes; with a factor, only for what is that many times as warm."""

    def make(slots: int, keys: int, _: list[list[int]]) -> Policy:
        warmth = score(keys, *args)
        eviction = Coldest(warmth)
        gate = {"gate": warmer(warmth, factor)} if factor else {}
        return Policy(slots, warmth, eviction, second_touch=touch, **gate)

    return make


def sampled(width: int) -> Make:
    """LFRU among the next slots behind a hand: with 16 the rule of csrc/core/cache_policy.h."""

    def make(slots: int, keys: int, _: list[list[int]]) -> Policy:
        warmth = FrequencyOverAge(keys, 64)
        return Policy(slots, warmth, ColdestOfNext(warmth, width))

    return make


def belady(slots: int, _: int, uses: list[list[int]]) -> Policy:
    """The bound on hits when all misses may be admitted."""
    oracle = Oracle(uses)

    def sooner(key: int, victim: int) -> bool:
        return bool(oracle.value[key] > oracle.value[victim])

    return Policy(slots, oracle, Coldest(oracle), sooner)


ARMS: dict[str, tuple[Make, dict[str, object]]] = {
    "CLOCK": (clock(), {}),
    "CLOCK, split by rounded share": (clock(), {"split": "share"}),
    "CLOCK, 1 admission a layer": (clock(), {"limit": 1}),
    "CLOCK, 2 admissions a layer": (clock(), {"limit": 2}),
    "CLOCK, 2 copies behind": (clock(), {"background": 2}),
    "CLOCK, second touch in 64": (clock(touch=64), {}),
    "CLOCK, 3-bit counters": (clock(7), {}),
    "LRU": (coldest(Recency), {}),
    "LFU, half-life 16": (coldest(Frequency, 16), {}),
    "LFU, half-life 64": (coldest(Frequency, 64), {}),
    "LFU, half-life 256": (coldest(Frequency, 256), {}),
    "LFU 64, second touch, 1.25x": (coldest(Frequency, 64, factor=1.25, touch=256), {}),
    "LFRU, half-life 64": (coldest(FrequencyOverAge, 64), {}),
    "LFRU 64, of the next 16 slots (ships)": (sampled(16), {}),
    "LFRU 64, of the next 64 slots": (sampled(64), {}),
    "LFRU, 2 copies behind": (coldest(FrequencyOverAge, 64), {"background": 2}),
    "two horizons": (coldest(TwoHorizons), {}),
    "S3-FIFO (ghosts)": (ghosts, {}),
    "Belady (knows the future)": (belady, {}),
}  # fmt: skip
