"""How misses are split between link and CPU: balance, its limits, and slow tracking."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm53_server.moe.split import (
    HYSTERESIS,
    LaneCosts,
    LaneSample,
    SplitState,
    balanced,
    track,
)

seconds = st.floats(1e-6, 1e-2)
spare = st.floats(0, 1e-3)
FAST = LaneCosts(link_s=2e-4, cpu_s=2.5e-4, fixed_s=5e-5)


def on_link(costs: LaneCosts, misses: int) -> int:
    """What the device makes of a split (core/cache_policy.h)."""
    share, offset = balanced(costs)
    return max(0, min(misses, int(misses * share + offset)))


def layer_s(costs: LaneCosts, misses: int, link: int) -> float:
    """When the later lane ends."""
    cpu = costs.fixed_s + (misses - link) * costs.cpu_s if link < misses else 0.0
    return max(link * costs.link_s + costs.kernels_s, cpu)


@given(seconds, seconds, spare, spare, st.integers(0, 32))
def test_no_other_whole_number_ends_the_layer_earlier(
    link_s: float, cpu_s: float, fixed_s: float, kernels_s: float, misses: int
) -> None:
    costs = LaneCosts(link_s, cpu_s, fixed_s, kernels_s=kernels_s)
    chosen = layer_s(costs, misses, on_link(costs, misses))
    # Sending nothing at all to the CPU saves its fixed cost too: the split does not reckon with that.
    best = min(layer_s(costs, misses, link) for link in range(misses)) if misses else kernels_s
    assert chosen <= best * (1 + 1e-6) + 1e-12


@given(seconds, seconds, seconds, spare, st.integers(1, 64))
def test_a_slower_lane_gets_less(one, other, cpu_s, fixed_s, misses) -> None:
    fast, slow = sorted((one, other))
    quick_link, slow_link = (on_link(LaneCosts(x, cpu_s, fixed_s), misses) for x in (fast, slow))
    assert slow_link <= quick_link
    slow_cpu, quick_cpu = (on_link(LaneCosts(cpu_s, x, 0.0), misses) for x in (slow, fast))
    assert slow_cpu >= quick_cpu


def test_the_gpus_own_kernels_count_as_time_of_the_link() -> None:
    costs = LaneCosts(2e-4, 2e-4, 3e-5)
    assert on_link(costs, 4) == 2
    assert on_link(replace(costs, kernels_s=1.9e-4), 5) == 2
    assert on_link(replace(costs, kernels_s=2e-3), 5) == 0


def test_the_split_follows_a_throttled_link_and_few_threads() -> None:
    def share(link: float = 1.0, threads: float = 14) -> float:
        costs = replace(FAST, link_s=FAST.link_s * link, cpu_s=FAST.cpu_s * 14 / threads)
        return sum(on_link(costs, misses) for misses in range(1, 9)) / 36

    x16, x4, x1 = share(), share(link=4), share(link=16)
    assert x16 > x4 > x1
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
    share, offset = balanced(state.costs)
    assert abs(state.share - share) <= HYSTERESIS
    assert abs(state.offset - offset) <= HYSTERESIS
    assert state.share > 0.6


def test_the_first_measurement_of_the_kernels_counts_whole() -> None:
    state = SplitState(FAST, 0.5)
    one = replace(sample(FAST.cpu_s), kernel_calls=42, kernels_s=42 * 1.8e-4)
    state = track(state, one)
    assert state.costs.kernels_s == pytest.approx(1.8e-4)
    state = track(state, replace(one, kernels_s=42 * 3.6e-4))
    assert state.costs.kernels_s == pytest.approx(1.89e-4)


def test_means_of_hits_and_misses_follow_slowly() -> None:
    state = SplitState(FAST, 0.5)
    for _ in range(200):
        state = track(state, sample(FAST.cpu_s, misses=64, hits=448))
    assert (state.misses, state.hits) == (
        pytest.approx(1.0, rel=0.01),
        pytest.approx(7.0, rel=0.01),
    )


def test_a_small_change_does_not_move_the_share() -> None:
    settled = SplitState(FAST, *balanced(FAST))
    state = settled
    for cpu_s in (1.02 * FAST.cpu_s, 0.98 * FAST.cpu_s) * 20:
        state = track(state, sample(cpu_s))
        assert (state.share, state.offset) == (settled.share, settled.offset)
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


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("field", ["cpu_busy_s", "link_busy_s", "kernels_s"])
def test_a_time_that_no_clock_gives_changes_nothing(field: str, wrong: float) -> None:
    state = SplitState(FAST, 0.5)
    odd = replace(
        sample(FAST.cpu_s), link_experts=3, link_busy_s=6e-4, kernel_calls=2, kernels_s=4e-4
    )
    assert track(state, replace(odd, **{field: wrong})) is state
    assert track(state, odd) is not state


def test_without_any_cost_the_lanes_share() -> None:
    assert balanced(LaneCosts(0.0, 0.0, 0.0)) == (0.5, 0.5)
