"""How a layer's misses are split between the link and the CPU: a calibrated, slowly tracked model.

Two lanes run in parallel and join before the residual add (performance.md 2.2):

    link  hits * hit_s + admitted * link_s
    cpu   fixed_s + computed * cpu_s

The share of misses that the link should take makes both end together. Pure; times in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

TRACK = 0.05  # weight of a new measurement
HYSTERESIS = 0.02  # the share moves only when it differs by more
GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class LaneCosts:
    """Seconds per expert on each lane, measured with both lanes busy, and the CPU lane's fixed cost."""

    link_s: float
    cpu_s: float
    fixed_s: float
    hit_s: float = 0.0


def balanced_share(costs: LaneCosts, misses: float, hits: float) -> float:
    """Share of the misses that the link takes so that both lanes end together, in [0, 1]."""
    if misses <= 0:
        return 1.0
    spare = costs.fixed_s - hits * costs.hit_s
    on_link = (misses * costs.cpu_s + spare) / (costs.link_s + costs.cpu_s)
    return min(1.0, max(0.0, on_link / misses))


@dataclass(frozen=True, slots=True)
class SplitState:
    """The model as it stands: costs, the share in force, and means of hits and misses per layer."""

    costs: LaneCosts
    share: float
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


def track(state: SplitState, sample: LaneSample) -> SplitState:
    """Fold a sample in: slow averages, and a new share when it moved beyond the hysteresis. Pure."""
    if state.frozen or sample.layers <= 0:
        return state

    def slow(old: float, new: float) -> float:
        return old + TRACK * (new - old)

    costs = state.costs
    if sample.cpu_experts > 0 and sample.cpu_jobs > 0:
        variable = max(0.0, sample.cpu_busy_s - sample.cpu_jobs * costs.fixed_s)
        costs = replace(costs, cpu_s=slow(costs.cpu_s, variable / sample.cpu_experts))
    if sample.link_experts > 0:
        costs = replace(costs, link_s=slow(costs.link_s, sample.link_busy_s / sample.link_experts))
    misses = slow(state.misses, sample.misses / sample.layers)
    hits = slow(state.hits, sample.hits / sample.layers)
    wanted = balanced_share(costs, misses, hits)
    share = wanted if abs(wanted - state.share) > HYSTERESIS else state.share
    return SplitState(costs, share, misses, hits)


def dither(call: int) -> float:
    """A low-discrepancy sequence in [0, 1): fractions of an expert average out over layers."""
    return (call * GOLDEN) % 1.0
