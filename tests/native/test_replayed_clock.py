"""The CLOCK that bench/replay_policies.py replays decides as the one that ships: its slow twin says so."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from clock_model import Ring, Step, apply, decide

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from cache_policies import Clock, Frequency, Policy


@pytest.mark.parametrize(("slots", "limit"), [(20, 99), (20, 2), (70, 99)])
def test_every_slot_holds_the_same_expert_after_every_layer(slots: int, limit: int) -> None:
    experts, layers = 48, 2
    generator = np.random.default_rng(slots + limit)
    ring = Ring([None] * slots)
    policy = Policy(slots, Frequency(layers * experts), Clock(slots))
    heat = np.zeros(layers * experts, int)
    for now in range(150):
        for layer in range(layers):
            base = layer * experts
            picks = np.minimum(generator.geometric(0.08, 6), experts) - 1
            place_of = {key: slot for slot, key in enumerate(ring.owner) if key is not None}
            resident = [place_of.get(base + int(pick)) for pick in picks]
            distinct = list(dict.fromkeys((base + picks).tolist()))
            heat[distinct] += 1
            priority = heat[base + picks].tolist()
            decision = decide(ring, Step(picks.tolist(), resident, priority, experts, limit))
            apply(ring, decision, base)

            hits, misses, busy = policy.touch(distinct, now)
            placed = sum(policy.place(key, busy) for key in misses[:limit])
            assert (len(hits), placed) == (decision.hits, len(decision.admissions))
            assert [None if key < 0 else key for key in policy.owner] == ring.owner
