"""How many experts are looked ahead: as many as make the steps shortest."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm53_server.moe.pace import GAIN, MOST, PATIENCE, WINDOW, Pace

COSTS = st.lists(st.floats(0.01, 0.1), min_size=MOST + 1, max_size=MOST + 1)


def run(pace: Pace, took_s: Callable[[int], float], steps: int, start_s: float = 0.0) -> list[int]:
    """The limits of so many steps."""
    limits: list[int] = []
    for _ in range(steps):
        limits.append(pace.step(start_s))
        start_s += took_s(limits[-1])
    return limits


@given(COSTS, st.integers(-3, 9))
def test_it_ends_where_no_neighbour_is_clearly_faster(costs: list[float], start: int) -> None:
    pace = Pace(start)
    limits = run(pace, costs.__getitem__, 90 * WINDOW)
    assert all(0 <= limit <= MOST for limit in limits)
    for near in (0, pace.best - 1, pace.best + 1):
        if 0 <= near <= MOST:
            assert costs[near] >= costs[pace.best] * (1 - GAIN) * (1 - 1e-9)


@pytest.mark.parametrize("wanted", range(MOST + 1))
@pytest.mark.parametrize("start", [0, 2, MOST])
def test_it_finds_the_bottom_of_a_valley_through_noise(wanted: int, start: int) -> None:
    chance = random.Random(wanted * 10 + start)
    pace = Pace(start)
    run(pace, lambda n: (0.030 + 0.002 * abs(n - wanted)) * chance.uniform(0.97, 1.03), 80 * WINDOW)
    assert pace.best == wanted


def test_what_is_worse_than_nothing_is_given_up_and_found_again() -> None:
    """The first copy costs more than the second one brings: nothing lies between the two best."""
    costs = {0: 0.054, 1: 0.065, 2: 0.064, 3: 0.057, 4: 0.070}
    pace = Pace(2)
    run(pace, costs.__getitem__, 12 * WINDOW)
    assert pace.best == 0
    costs[2] = 0.050
    run(pace, costs.__getitem__, 3 * PATIENCE * WINDOW, start_s=1e6)
    assert pace.best == 2


def test_trials_grow_rare_when_nothing_is_won() -> None:
    pace = Pace(1)
    flat = run(pace, lambda _: 0.03, 10 * PATIENCE * WINDOW)
    assert sum(limit != 1 for limit in flat[-100 * WINDOW :]) <= 2 * WINDOW
    assert sum(limit != 1 for limit in flat) > 0


def test_it_follows_when_what_is_best_changes() -> None:
    pace = Pace(1)
    run(pace, lambda n: 0.03 + 0.002 * n, 100 * WINDOW)
    assert pace.best == 0
    run(pace, lambda n: 0.05 - 0.002 * n, 10 * PATIENCE * WINDOW, start_s=1e6)
    assert pace.best == MOST


def test_a_pause_is_no_slow_step() -> None:
    pace = Pace(2)
    now_s = 0.0
    for step in range(30 * WINDOW):
        if step % 3 == 0:
            pace.pause()
            now_s += 100.0
        pace.step(now_s)
        now_s += 0.02
    assert max(pace.took_s.values()) < 0.03


@given(
    st.integers(-9, 9),
    st.lists(
        st.one_of(
            st.just(None), st.sampled_from([0.0, 0.0, 1e-9, 0.03, 60.0, 1e9]), st.floats(0, 1)
        ),
        min_size=1,
        max_size=40,
    ),
    st.randoms(use_true_random=False),
)
def test_no_clock_leads_it_astray(
    start: int, pattern: list[float | None], chance: random.Random
) -> None:
    """Clocks that stand still, that leap, and pauses (None) at any moment."""
    pace, now_s = Pace(start), 0.0
    for _ in range(20 * WINDOW):
        took_s = chance.choice(pattern)
        if took_s is None:
            pace.pause()
        else:
            now_s += took_s
        limit = pace.step(now_s)
        assert 0 <= limit <= MOST
        assert 0 <= pace.best <= MOST
        assert all(took_s >= 0 for took_s in pace.took_s.values())
    assert not pace.took_s or pace.best in pace.took_s


def test_a_clock_that_stands_still_changes_nothing() -> None:
    pace = Pace(2)
    run(pace, lambda _: 0.0, 50 * WINDOW)
    assert pace.best == 2
