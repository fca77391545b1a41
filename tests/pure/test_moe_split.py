"""How misses are split between link and CPU: balance, its limits, and slow tracking."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm53_server.moe.split import (
    HYSTERESIS,
    LaneCosts,
    LaneSample,
    SplitState,
    balanced_share,
    dither,
    track,
)

seconds = st.floats(1e-6, 1e-2)
spare = st.floats(0, 1e-3)
counts = st.floats(0, 64)
FAST = LaneCosts(link_s=2e-4, cpu_s=2.5e-4, fixed_s=5e-5, hit_s=1e-5)


@given(seconds, seconds, spare, spare, counts, counts)
def test_both_lanes_end_together_unless_one_must_take_all(
    link_s: float, cpu_s: float, fixed_s: float, hit_s: float, misses: float, hits: float
) -> None:
    costs = LaneCosts(link_s, cpu_s, fixed_s, hit_s)
    share = balanced_share(costs, misses, hits)
    assert 0.0 <= share <= 1.0
    if misses == 0:
        assert share == 1.0
        return
    link = hits * hit_s + share * misses * link_s
    cpu = fixed_s + (1 - share) * misses * cpu_s
    slack = 1e-9 + 1e-6 * (link + cpu)
    if share == 1.0:
        assert link <= cpu + slack, "the link was given more than it can do in time"
    elif share == 0.0:
        assert link >= cpu - slack
    else:
        assert link == pytest.approx(cpu, rel=1e-6, abs=1e-9)


@given(seconds, seconds, seconds, spare, counts)
def test_a_slower_lane_gets_less(one, other, cpu_s, fixed_s, misses) -> None:
    fast, slow = sorted((one, other))
    quick_link = balanced_share(LaneCosts(fast, cpu_s, fixed_s), misses, 4.0)
    slow_link = balanced_share(LaneCosts(slow, cpu_s, fixed_s), misses, 4.0)
    assert slow_link <= quick_link
    quick_cpu = balanced_share(LaneCosts(cpu_s, fast, fixed_s), misses, 4.0)
    slow_cpu = balanced_share(LaneCosts(cpu_s, slow, fixed_s), misses, 4.0)
    assert slow_cpu >= quick_cpu


def test_the_split_follows_a_throttled_link_and_few_threads() -> None:
    def share(link: float = 1.0, threads: float = 14) -> float:
        costs = replace(FAST, link_s=FAST.link_s * link, cpu_s=FAST.cpu_s * 14 / threads)
        return balanced_share(costs, 4.0, 4.0)

    x16, x4, x1 = share(), share(link=4), share(link=16)
    assert x16 > x4 > x1 > 0
    assert x16 > 0.5
    assert x1 < 0.12
    assert share(threads=4) > 0.8 > share(threads=8) > x16
    assert share(threads=0.5) > 0.97


def sample(cpu_s: float, *, misses: int = 256, hits: int = 256, share: float = 0.5) -> LaneSample:
    """64 layer calls on a machine whose CPU takes `cpu_s` per expert."""
    experts = round(misses * (1 - share))
    jobs = 64
    return LaneSample(64, hits, misses, experts, jobs, jobs * FAST.fixed_s + experts * cpu_s)


def test_the_cost_and_the_share_come_to_what_is_measured() -> None:
    state = SplitState(FAST, 0.5)
    truth = 6e-4
    first = track(state, sample(truth))
    assert state.costs.cpu_s < first.costs.cpu_s < 1.1 * state.costs.cpu_s, "one sample is a hint"
    for _ in range(200):
        state = track(state, sample(truth))
    assert state.costs.cpu_s == pytest.approx(truth, rel=0.01)
    assert state.costs.link_s == FAST.link_s
    wanted = balanced_share(state.costs, state.misses, state.hits)
    assert abs(state.share - wanted) <= HYSTERESIS
    assert state.share > 0.6


def test_means_of_hits_and_misses_follow_slowly() -> None:
    state = SplitState(FAST, 0.5)
    for _ in range(200):
        state = track(state, sample(FAST.cpu_s, misses=64, hits=448))
    assert (state.misses, state.hits) == (
        pytest.approx(1.0, rel=0.01),
        pytest.approx(7.0, rel=0.01),
    )


def test_a_small_change_does_not_move_the_share() -> None:
    costs = replace(FAST, hit_s=0.0)
    settled = SplitState(costs, balanced_share(costs, 4.0, 4.0))
    state = settled
    for cpu_s in (1.02 * FAST.cpu_s, 0.98 * FAST.cpu_s) * 20:
        state = track(state, sample(cpu_s))
        assert state.share == settled.share
    moved = settled
    for _ in range(100):
        moved = track(moved, sample(2 * FAST.cpu_s))
    assert moved.share > settled.share + HYSTERESIS


def test_a_frozen_split_and_an_empty_sample_change_nothing() -> None:
    frozen = SplitState(FAST, 0.3, frozen=True)
    assert track(frozen, sample(9e-4)) is frozen
    state = SplitState(FAST, 0.3)
    assert track(state, LaneSample(0, 0, 0, 0, 0, 0.0)) is state


def test_without_cpu_work_its_cost_stays() -> None:
    state = track(SplitState(FAST, 1.0), LaneSample(64, 512, 0, 0, 0, 0.0))
    assert state.costs == FAST


def test_an_idle_lane_is_not_free() -> None:
    """Busy time below the fixed cost must not drive the cost below zero."""
    state = SplitState(FAST, 0.5)
    for _ in range(500):
        state = track(state, LaneSample(64, 256, 256, 64, 64, 0.0))
    assert state.costs.cpu_s >= 0
    assert 0 <= state.share <= 1


def test_dither_is_in_range_and_averages_out() -> None:
    values = [dither(call) for call in range(4200)]
    assert all(0 <= value < 1 for value in values)
    for misses, share in ((4, 0.3), (3, 0.61), (7, 0.05), (1, 0.5)):
        for start in range(0, 4200, 420):  # ten decode steps of 42 layers
            window = values[start : start + 420]
            admitted = sum(int(misses * share + value) for value in window)
            assert admitted / 420 == pytest.approx(misses * share, abs=0.02)


def test_dither_stays_in_range_at_the_end_of_the_sequence() -> None:
    assert all(0 <= dither(call) < 1 for call in range(2**32 - 1000, 2**32))
