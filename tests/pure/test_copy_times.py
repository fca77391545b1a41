"""Timing the copies of a few decode steps leaves the others, and the CPU lane's own timing, alone."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glm53_kernels.cuda import COUNTERS

BENCH = str(Path(__file__).resolve().parents[2] / "bench")
LAYERS, ADMITTED_PER_LAYER, COPY_MS = 3, 2, 0.5


class Residency:
    """Counts admissions, and times the copies of a step when asked to."""

    def __init__(self) -> None:
        self.gather_times: list[Any] | None = None
        self._arrays = {"counters": torch.zeros(len(COUNTERS), dtype=torch.int64)}

    def step(self) -> bool:
        """A decode step; whether its copies were timed."""
        self._arrays["counters"][COUNTERS.index("admitted")] += LAYERS * ADMITTED_PER_LAYER
        if self.gather_times is None:
            return False
        span = SimpleNamespace(elapsed_time=lambda after: after)
        self.gather_times += [(span, COPY_MS)] * LAYERS
        return True


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(BENCH)
    yield importlib.import_module("copy_times")
    del sys.modules["copy_times"]


def run(copies: Any, residency: Residency, steps: int) -> list[int]:
    """The steps that were timed."""
    timed = []
    for number in range(steps):
        copies.begin()
        if residency.step():
            timed.append(number)
        copies.end(4)
    return timed


def test_one_step_in_so_many_is_timed_and_stands_for_all(bench: Any) -> None:
    residency = Residency()
    copies = bench.CopyTimes(residency)
    timed = run(copies, residency, 40)
    assert [b - a for a, b in itertools.pairwise(timed)] == [bench.TIMED_EVERY] * 3
    assert residency.gather_times is None
    assert (copies.steps, copies.produced) == (4, 16)
    assert copies.ms_per_step() == pytest.approx(LAYERS * COPY_MS)
    assert copies.experts_per_s() == pytest.approx(1e3 * ADMITTED_PER_LAYER / COPY_MS)
    assert copies.wall_s > 0


def test_a_run_too_short_for_any_has_no_copies(bench: Any) -> None:
    copies = bench.CopyTimes(Residency())
    assert (copies.ms_per_step(), copies.experts_per_s(), copies.wall_s) == (0, 0, 0)


def test_without_a_residency_nothing_is_timed(bench: Any) -> None:
    copies = bench.CopyTimes(None)
    run(copies, Residency(), 20)
    assert (copies.steps, copies.produced) == (0, 0)


def test_a_step_that_the_lane_times_is_left_to_it(bench: Any) -> None:
    residency = Residency()
    copies = bench.CopyTimes(residency)
    first = bench.TIMED_EVERY // 2
    assert run(copies, residency, first) == []
    lanes: list[Any] = []
    residency.gather_times = lanes
    run(copies, residency, 1)
    assert residency.gather_times is lanes
    assert (len(lanes), copies.steps) == (LAYERS, 0)
    residency.gather_times = None
    assert run(copies, residency, 2) == [0]


@pytest.mark.parametrize("track_every", [2, 4, 8, 16, 64])
def test_the_lane_keeps_most_of_its_own_measurements(bench: Any, track_every: int) -> None:
    """As CpuLane.after_step takes them: for one step, unless something else times it already."""
    residency = Residency()
    copies = bench.CopyTimes(residency)
    steps, taken, own = 20 * track_every, 0, None
    for number in range(1, steps + 1):
        copies.begin()
        if own is not None:
            assert residency.gather_times is own
            assert len(own) == LAYERS
            residency.gather_times, own = None, None
            taken += 1
        elif (number + 1) % track_every == 0 and residency.gather_times is None:
            own = residency.gather_times = []
        residency.step()
        copies.end(1)
    assert taken >= 0.7 * steps / track_every
    assert copies.steps >= 0.9 * (steps // bench.TIMED_EVERY)
    assert copies.ms_per_step() == pytest.approx(LAYERS * COPY_MS)
