"""What bench/replay_policies.py says of the rule that ships holds for the C++ that ships."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cache_model import Ring, apply
from test_cache_policy import call, step_of

from glm53_kernels import CpuKernels

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from cache_policies import Clock, ColdestOfNext, Frequency, FrequencyOverAge, Policy

EXPERTS, LAYERS, PICKS = 48, 3, 6


def topics(steps: int, seed: int) -> np.ndarray:
    """int [steps, layers, picks]: some experts are popular, others after the middle."""
    generator = np.random.default_rng(seed)
    halves = []
    for _ in range(2):
        weights = generator.lognormal(0, 1.3, (LAYERS, EXPERTS))
        chance = weights / weights.sum(1, keepdims=True)
        halves += [
            [generator.choice(EXPERTS, PICKS, replace=False, p=chance[layer]) for layer in range(LAYERS)]
            for _ in range(steps // 2)
        ]  # fmt: skip
    return np.array(halves)


def replayed(policy: Policy, trace: np.ndarray, limit: int) -> int:
    hits = 0
    for now, layers in enumerate(trace):
        for layer, picks in enumerate(layers):
            found, misses, busy = policy.touch((layer * EXPERTS + picks).tolist(), now)
            hits += len(found)
            for key in misses[:limit]:
                policy.place(key, busy)
    return hits


@pytest.mark.parametrize(("slots", "limit"), [(40, 99), (40, 2), (70, 99)])
def test_the_shipped_code_hits_as_often_as_the_replay_says_and_more_often_than_clock(
    open_kernels: Callable[..., CpuKernels], slots: int, limit: int
) -> None:
    library, trace = open_kernels().library, topics(240, slots)
    ring, hits = Ring([None] * slots), 0
    for now, layers in enumerate(trace):
        for layer, picks in enumerate(layers):
            step = step_of(picks.tolist(), now, layer=layer, experts=EXPERTS, admit_limit=limit)
            decision = call(library, ring, step, measured=slots)
            apply(ring, decision, layer * EXPERTS)
            hits += decision.hits

    keys = LAYERS * EXPERTS
    warmth = FrequencyOverAge(keys, 64)
    lfru = replayed(Policy(slots, warmth, ColdestOfNext(warmth, 16)), trace, limit)
    clock = replayed(Policy(slots, Frequency(keys), Clock(slots)), trace, limit)
    assert hits == pytest.approx(lfru, rel=0.01)
    assert hits > 1.02 * clock
