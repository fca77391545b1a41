"""Measure both lanes of fast mode on this machine, through the real path, in about two seconds.

Alone and together: the link hardly suffers from the CPU lane, the CPU lane does from the link, so
the costs that decide the split are the ones measured with both busy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from glm53_server.moe.cpu_tier import CpuLane
from glm53_server.moe.residency import Residency
from glm53_server.moe.split import LaneCosts, SplitState, balanced

JOBS = 48


@dataclass(frozen=True, slots=True)
class Calibration:
    """Costs with both lanes busy, and the rates of each lane alone, in GB/s of expert bytes."""

    costs: LaneCosts
    link_gb_per_s: float
    cpu_alone_gb_per_s: float
    cpu_gb_per_s: float


class _Probe:
    """Runs decode steps with chosen picks and reads both lanes' clocks."""

    def __init__(self, lane: CpuLane, residency: Residency) -> None:
        self._lane = lane
        self._residency = residency
        self._generator = torch.Generator().manual_seed(3)
        device = residency.device
        shape = lane.shape
        self._x = torch.randn(1, shape.hidden, generator=self._generator).half().to(device)
        self._final = torch.zeros(1, shape.hidden, device=device)

    def run(self, picks: int, share: float) -> tuple[float, float, float]:
        """(CPU seconds per job, experts per job, link seconds per admitted expert)."""
        residency, lane = self._residency, self._lane
        lane.split = SplitState(lane.split.costs, share, frozen=True)
        before, admitted = lane.counters(), residency.counters()["admitted"]
        residency.gather_times = []
        layers = residency.layout.layers
        for job in range(JOBS):
            chosen = torch.randperm(residency.layout.experts, generator=self._generator)[:picks]
            ids = chosen.to(residency.device)
            weights = torch.full((1, picks), 0.3, dtype=torch.float16, device=residency.device)
            step = residency.new_step((job * 5) % layers)
            step.picks, step.num_picks = ids.data_ptr(), picks
            lane.fill(step, self._x, weights)
            step.runs = 0  # only the lanes are measured
            step.per_row = picks
            residency.decode_step(step)
            lane.combine(residency, step, self._final)
        torch.cuda.synchronize(residency.device)
        spans, residency.gather_times = residency.gather_times, None
        after = lane.counters()
        busy_s = (after.busy_ns - before.busy_ns) / 1e9
        copied = residency.counters()["admitted"] - admitted
        link_s = sum(a.elapsed_time(b) for a, b in spans) / 1e3 / max(1, copied)
        jobs, experts = max(1, after.jobs - before.jobs), after.experts - before.experts
        return busy_s / jobs, experts / jobs, link_s


def calibrate(lane: CpuLane, residency: Residency, progress: Callable[[], None]) -> Calibration:
    """Measure and install a split. The cache's contents change; nothing else does."""
    probe = _Probe(lane, residency)
    probe.run(2, 0.0)  # wake the pool, touch the pages
    progress()
    few, few_experts, _ = probe.run(1, 0.0)
    many, many_experts, _ = probe.run(6, 0.0)
    cpu_alone_s = max(1e-9, (many - few) / max(1.0, many_experts - few_experts))
    fixed_s = max(0.0, few - few_experts * cpu_alone_s)
    busy, experts, link_s = probe.run(8, 0.5)
    cpu_s = max(cpu_alone_s, (busy - fixed_s) / max(1.0, experts))
    costs = LaneCosts(link_s, cpu_s, fixed_s)
    lane.split = SplitState(costs, *balanced(costs))
    size = residency.layout.record_bytes / 1e9
    return Calibration(costs, size / max(link_s, 1e-9), size / cpu_alone_s, size / cpu_s)
