"""How a layer's misses are split between the link and the CPU: a calibrated, slowly tracked model.

Two lanes run in parallel and join before the residual add:

    link  hits * hit_s + admitted * link_s + kernels_s
    cpu   fixed_s + computed * cpu_s

The link takes the whole number of misses for which the later of the two ends first. Pure; times in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

TRACK = 0.05  # weight of a new measurement
HYSTERESIS = 0.02  # the share moves only when it differs by more


@dataclass(frozen=True, slots=True)
class LaneCosts:
    """Seconds per expert on each lane, measured with both lanes busy, and each lane's fixed cost.

    kernels_s: what the GPU's expert kernels take after the copies of a layer.
    """

    link_s: float
    cpu_s: float
    fixed_s: float
    hit_s: float = 0.0
    kernels_s: float = 0.0


def balanced(costs: LaneCosts, hits: float = 0.0) -> tuple[float, float]:
    """(share, offset): of m misses the link takes floor(m * share + offset), which is best for every m.

    Both lanes would end together at x = m * share + spare / both. One more on the link than floor(x)
    costs (1 - fraction) * link_s, one less fraction * cpu_s: x is rounded up from link_s / both on.
    """
    both = costs.link_s + costs.cpu_s
    if both <= 0:
        return 0.5, 0.5  # nothing was measured
    share = costs.cpu_s / both
    spare = costs.fixed_s - costs.kernels_s - hits * costs.hit_s
    return share, spare / both + share


@dataclass(frozen=True, slots=True)
class SplitState:
    """The model as it stands: costs, the split in force, and means of hits and misses per layer.

    Of m misses the link takes floor(m * share + offset), at least none and at most all.
    """

    costs: LaneCosts
    share: float
    offset: float = 0.5
    misses: float = 4.0
    hits: float = 4.0
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class LaneSample:
    """What one stretch of decode showed: totals over `layers` layer calls.

    The link's figures may come from a part of the stretch: its copies are timed now and then.
    """

    layers: int
    hits: int
    misses: int
    cpu_experts: int
    cpu_jobs: int
    cpu_busy_s: float
    link_experts: int = 0
    link_busy_s: float = 0.0
    kernel_calls: int = 0
    kernels_s: float = 0.0

    @property
    def plausible(self) -> bool:
        """False for times that no clock gives: one of them would stay in the averages for good."""
        times = (self.cpu_busy_s, self.link_busy_s, self.kernels_s)
        return all(math.isfinite(time) and time >= 0 for time in times)


def track(state: SplitState, sample: LaneSample) -> SplitState:
    """Fold a sample in: slow averages, and a new share when it moved beyond the hysteresis. Pure."""
    if state.frozen or sample.layers <= 0 or not sample.plausible:
        return state

    def slow(old: float, new: float) -> float:
        return old + TRACK * (new - old)

    costs = state.costs
    if sample.cpu_experts > 0 and sample.cpu_jobs > 0:
        variable = max(0.0, sample.cpu_busy_s - sample.cpu_jobs * costs.fixed_s)
        costs = replace(costs, cpu_s=slow(costs.cpu_s, variable / sample.cpu_experts))
    if sample.link_experts > 0:
        costs = replace(costs, link_s=slow(costs.link_s, sample.link_busy_s / sample.link_experts))
    if sample.kernel_calls > 0:
        measured = sample.kernels_s / sample.kernel_calls
        known = costs.kernels_s or measured  # the first measurement counts whole
        costs = replace(costs, kernels_s=slow(known, measured))
    misses = slow(state.misses, sample.misses / sample.layers)
    hits = slow(state.hits, sample.hits / sample.layers)
    share, offset = balanced(costs, hits)
    if max(abs(share - state.share), abs(offset - state.offset)) <= HYSTERESIS:
        share, offset = state.share, state.offset
    return SplitState(costs, share, offset, misses, hits)
