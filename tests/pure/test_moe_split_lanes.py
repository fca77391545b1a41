"""The split on simulated machines: links of x16, x4 and x1, 2 to 14 threads, changes while it runs.

The simulation has what the tracker does not know: noise, DRAM that both lanes share, and a CPU lane
that does not scale with its threads for ever.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field, replace

import pytest

from glm53_server.moe.cpu_tier import PROBE_LAYERS
from glm53_server.moe.split import LaneCosts, LaneSample, SplitState, track

RECORD_BYTES = 3 * 4096 * 2048 * 3 // 8
LINK_GB_PER_S = {"x16": 50.0, "x4": 13.0, "x1": 3.2}
CORE_GB_PER_S, DRAM_GB_PER_S = 4.5, 55.0
FIXED_S, KERNELS_S = 4e-5, 5e-5
LAYERS, STEPS = 24, 8  # per sample; the last step is the one that is timed


@dataclass
class Machine:
    """Both lanes of a decode step; every rate may be changed between two samples."""

    link: str
    threads: int
    picks: int = 8
    miss_rate: float = 0.5
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    def costs(self) -> LaneCosts:
        """True seconds per expert with both lanes busy: DRAM feeds the cores and the link."""
        link = LINK_GB_PER_S[self.link]
        cores = min(self.threads * CORE_GB_PER_S, DRAM_GB_PER_S - 0.3 * link)
        size = RECORD_BYTES / 1e9
        return LaneCosts(size / link, size / cores, FIXED_S, kernels_s=KERNELS_S)

    def noisy(self, seconds: float) -> float:
        return seconds * self.chance.lognormvariate(0, 0.1)

    def misses(self) -> int:
        return sum(self.chance.random() < self.miss_rate for _ in range(self.picks))


@dataclass
class Shown:
    """One sample's decode: seconds per layer, the best they could be, and who took the misses."""

    layer_s: float
    best_s: float
    link_share: float
    state: SplitState


def layer_s(costs: LaneCosts, misses: int, link: int) -> float:
    cpu = costs.fixed_s + (misses - link) * costs.cpu_s if link < misses else 0.0
    return max(link * costs.link_s + costs.kernels_s, cpu)


def on_link(state: SplitState, misses: int, layer: int, *, timed: bool) -> int:
    """What the lane and the device make of the split: CpuLane.fill and core/cache_policy.h."""
    share, offset = state.share, state.offset
    if timed and layer % PROBE_LAYERS == 0:
        offset = max(offset, 1.0)
    elif timed and layer % PROBE_LAYERS == 1:
        share = offset = 0.0
    return min(misses, max(0, int(misses * share + offset)))


def decode(machine: Machine, state: SplitState) -> Shown:
    """One stretch between two looks at the counters."""
    true = machine.costs()
    total = best = cpu_busy = link_busy = 0.0
    all_misses = all_link = cpu_experts = cpu_jobs = timed_link = 0
    for step in range(STEPS):
        timed = step == STEPS - 1
        for layer in range(LAYERS):
            misses = machine.misses()
            link = on_link(state, misses, layer, timed=timed)
            total += layer_s(true, misses, link)
            best += min(layer_s(true, misses, n) for n in range(misses + 1))
            all_misses += misses
            all_link += link
            if link < misses:
                cpu_jobs += 1
                cpu_experts += misses - link
                cpu_busy += machine.noisy(true.fixed_s + (misses - link) * true.cpu_s)
            if timed:
                timed_link += link
                link_busy += machine.noisy(link * true.link_s) + 3e-6
    calls = STEPS * LAYERS
    sample = LaneSample(
        calls, calls * machine.picks - all_misses, all_misses, cpu_experts, cpu_jobs, cpu_busy,
        timed_link, link_busy, LAYERS, sum(machine.noisy(true.kernels_s) for _ in range(LAYERS)),
    )  # fmt: skip
    return Shown(total / calls, best / calls, all_link / max(1, all_misses), track(state, sample))


def run(machine: Machine, state: SplitState, samples: int) -> list[Shown]:
    shown: list[Shown] = []
    for _ in range(samples):
        shown.append(decode(machine, state))
        state = shown[-1].state
    return shown


def start(machine: Machine) -> SplitState:
    """What a calibration on this machine installs."""
    return track(SplitState(machine.costs(), 0.5), LaneSample(1, 4, 4, 0, 0, 0.0))


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def settled(shown: list[Shown]) -> tuple[float, float]:
    """(how far from the best, share of the misses on the link) over the last quarter."""
    last = shown[-len(shown) // 4 :]
    return mean([s.layer_s for s in last]) / mean([s.best_s for s in last]), mean(
        [s.link_share for s in last]
    )


@pytest.mark.parametrize("threads", [2, 4, 8, 14])
@pytest.mark.parametrize("link", ["x16", "x4", "x1"])
def test_a_wrong_split_comes_to_the_best_and_stays(link: str, threads: int) -> None:
    """Started from the calibration of the opposite machine: everything it knows is wrong."""
    other = Machine("x1" if link == "x16" else "x16", 2 if threads > 4 else 14)
    shown = run(Machine(link, threads), start(other), 120)
    over, _ = settled(shown)
    # The timed step, one of eight here and one of 64 in service, gives up speed to see both lanes.
    assert over < 1.12
    last = [s.state for s in shown[-50:]]
    moves = [b.share - a.share for a, b in itertools.pairwise(last) if a.share != b.share]
    turns = sum(a * b < 0 for a, b in itertools.pairwise(moves))
    assert turns <= 4, f"the split swings: {moves}"
    assert max(s.share for s in last) - min(s.share for s in last) < 0.1


def test_the_link_gets_less_when_narrow_and_more_beside_few_threads() -> None:
    def share(link: str, threads: int) -> float:
        machine = Machine(link, threads)
        return settled(run(machine, start(Machine("x16", 14)), 120))[1]

    by_link = [share(link, 14) for link in ("x16", "x4", "x1")]
    assert by_link == sorted(by_link, reverse=True)
    assert by_link[0] > 0.4
    assert by_link[2] < 0.15
    by_threads = [share("x16", threads) for threads in (2, 4, 8, 14)]
    assert by_threads == sorted(by_threads, reverse=True)
    assert by_threads[0] > by_threads[-1] + 0.2


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (Machine("x16", 14), Machine("x1", 14)),
        (Machine("x16", 14), Machine("x16", 2)),
        (Machine("x1", 14), Machine("x16", 14)),
        (Machine("x16", 2), Machine("x1", 14)),
    ],
)
def test_a_change_under_way_is_followed_and_back(first: Machine, then: Machine) -> None:
    state = start(first)
    for machine in (first, then, first):
        shown = run(machine, state, 120)
        state = shown[-1].state
        assert settled(shown)[0] < 1.12


def test_a_frozen_split_does_not_follow_and_pays_for_it() -> None:
    frozen = replace(start(Machine("x16", 14)), frozen=True)
    narrow = Machine("x1", 14)
    shown = run(narrow, frozen, 40)
    assert all(s.state == frozen for s in shown)
    assert settled(shown)[0] > 1.5
    assert settled(run(narrow, replace(frozen, frozen=False), 120))[0] < 1.12
