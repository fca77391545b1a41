"""Size the expert cache from measured free VRAM, build the tiers of a loaded model, and end them."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from glm53_kernels import CpuKernels
from glm53_kernels.cuda import CudaKernels
from glm53_server.engine.exl3_model import (
    LoadedModel,
    attach,
    expert_pointers,
    expert_scales,
    expert_shape,
    moe_blocks,
    routers_of,
    tables_of,
)
from glm53_server.moe.calibrate import calibrate
from glm53_server.moe.cpu_tier import CpuLane
from glm53_server.moe.gpu_experts import GpuExperts
from glm53_server.moe.layer import ExpertTiers
from glm53_server.moe.lookahead import Lookahead
from glm53_server.moe.prefill import PrefillStager
from glm53_server.moe.residency import Residency
from glm53_server.moe.routing_trace import RoutingTrace
from glm53_server.moe.slots import SlotMemory, plan_slots
from glm53_server.moe.split import SplitState, balanced
from glm53_server.moe.step_events import StepEvents
from glm53ctl.plan import CpuTierPlan

log = logging.getLogger(__name__)

STAGE_ROWS = 256  # prefill chunks below this read missing experts in place


@dataclass(frozen=True, slots=True)
class VramBudget:
    """How VRAM may be used, in bytes. `limit` caps the card (None: all of it); `slots` overrides sizing."""

    reserve: int
    elastic: int
    stage: int
    limit: int | None = None
    slots: int | None = None
    lookahead: int = 0  # experts copied one layer ahead in decode
    heat_file: Path | None = None  # picks of earlier runs: the cache starts warm


def free_for_slots(budget: VramBudget, free_bytes: int, total_bytes: int) -> int:
    """Bytes the slots may take: what is free under the limit, less the reserve. Pure."""
    limit = total_bytes if budget.limit is None else min(budget.limit, total_bytes)
    used = total_bytes - free_bytes
    return max(0, min(free_bytes, limit - used) - budget.reserve)


def build_tiers(
    loaded: LoadedModel,
    kernels: CudaKernels,
    budget: VramBudget,
    trace: RoutingTrace | None = None,
    stage_rows: int = STAGE_ROWS,
    cpu_lane: CpuLane | None = None,
) -> ExpertTiers:
    """Allocate the slots, attach the hooks, and start with an empty cache. Raises OutOfMemoryError."""
    arena = loaded.arena
    assert arena is not None
    torch.cuda.empty_cache()
    layout = arena.layout
    if budget.slots is not None:
        available = budget.slots * layout.record_bytes
    else:
        available = free_for_slots(budget, *torch.cuda.mem_get_info(loaded.device))
    # The decode transients fit the reserve; what prefill needs beyond it comes from flexible slots.
    activation = max(0, loaded.activation_bytes - budget.reserve)
    plan = plan_slots(
        available,
        layout.record_bytes,
        stage_bytes=min(budget.stage, budget.elastic // 2),
        activation_bytes=min(activation, max(0, budget.elastic - 2 * budget.stage)),
        max_slots=layout.layers * layout.experts,
    )
    memory = SlotMemory(plan, layout.record_bytes, loaded.device)
    tables = [tables_of(block) for block in moe_blocks(loaded)]
    with torch.inference_mode():
        residency = Residency(arena, tables, kernels, plan.total, loaded.device)
        if plan.total:
            residency.slot_address[: plan.total].copy_(
                torch.tensor(memory.addresses(), dtype=torch.int64)
            )
        stager = PrefillStager(residency, memory, budget.reserve)
    tiers = ExpertTiers(
        residency, stager, stage_rows=stage_rows, route_override=trace, cpu_lane=cpu_lane
    )
    with torch.inference_mode():
        tiers.heat_file = budget.heat_file
        if budget.heat_file is not None and residency.load_heat(budget.heat_file):
            stager.warm_start()
    attach(loaded, tiers)
    events = StepEvents(loaded.device)
    if cpu_lane is not None and cpu_lane.own_kernels and cpu_lane.shape.on_gpu:
        pointers = [expert_pointers(block) for block in moe_blocks(loaded)]
        with torch.inference_mode():
            cpu_lane.experts = GpuExperts(residency, pointers, cpu_lane.shape, events)
    with torch.inference_mode():
        if budget.lookahead and plan.total:  # last: its thread is the caller's to end
            guesses = None if trace is None else trace.guesses_for
            tiers.lookahead = Lookahead(
                residency, routers_of(loaded), budget.lookahead, events, guesses
            )
    return tiers


def build_cpu_lane(
    loaded: LoadedModel, kernels: CudaKernels, pool: CpuKernels, split: SplitState
) -> CpuLane:
    """The CPU lane of fast mode over the loaded model's arena. Close it before the arena."""
    assert loaded.arena is not None
    blocks = moe_blocks(loaded)
    scales = [expert_scales(block) for block in blocks]
    return CpuLane(loaded.arena, scales, expert_shape(blocks[0]), pool, kernels, split)


def set_split(lane: CpuLane, residency: Residency, tier: CpuTierPlan) -> None:
    """Calibrate the lane, or take the CPU's rate from the plan; freeze the split if it says so."""
    with torch.inference_mode():
        found = calibrate(lane, residency, lambda: None)
    costs = found.costs
    if tier.bandwidth_bytes_per_s is not None:
        costs = replace(costs, cpu_s=residency.layout.record_bytes / tier.bandwidth_bytes_per_s)
    lane.split = SplitState(costs, *balanced(costs), frozen=tier.frozen_split)


def end_threads(tiers: ExpertTiers, left: ExitStack) -> None:
    """Have `left` end the threads of the tiers."""
    if tiers.cpu_lane is not None:
        left.callback(_close_lane, tiers.cpu_lane)
    if tiers.lookahead is not None:
        left.callback(tiers.lookahead.close)


def _close_lane(lane: CpuLane) -> None:
    if not lane.close():
        log.warning("a thread of the CPU tier never came back; its memory stays until the end")


def save_heat(tiers: ExpertTiers) -> None:
    """Keep what is warm for the next start, where the plan wants that."""
    try:
        if tiers.heat_file is not None:
            tiers.residency.save_heat(tiers.heat_file)
    except OSError as err:
        log.warning("the cache's heat was not saved: %s", err)
