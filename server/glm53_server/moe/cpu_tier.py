"""Fast mode's CPU lane: misses that are not worth a copy are computed on the host, from the arena.

Per layer the device posts picks and rows into a mailbox in pinned memory, a native thread computes
them with the cores of the plan, and the device adds the result; Python only counts sequence numbers.
There is one copy of every expert: the same bytes that the GPU reads.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from glm53_kernels import CpuKernels, CpuTier, TierShape, TierStats
from glm53_kernels.cuda import CudaKernels, StepStruct
from glm53_server.moe.arena import ExpertArena
from glm53_server.moe.expert_shape import ExpertShape
from glm53_server.moe.gpu_experts import GpuExperts
from glm53_server.moe.residency import Residency
from glm53_server.moe.split import LaneSample, SplitState, track

WATCHDOG_MS = 3000
TRACK_EVERY = 64  # decode steps between two looks at the counters
# Of so many layers, in the step that is timed, one uses the link and one the CPU for sure.
PROBE_LAYERS = 8
LEAST_COPY_MS = 0.02  # a gather that moved anything takes longer


@dataclass(frozen=True, slots=True)
class ExpertScales:
    """suh and svh of one layer's experts on the host: fp16 [experts, features] per projection."""

    gate: tuple[torch.Tensor, torch.Tensor]
    up: tuple[torch.Tensor, torch.Tensor]
    down: tuple[torch.Tensor, torch.Tensor]


class CpuLane:
    """Owns the mailbox and the native tier. Engine thread only.

    `failed` turns true when a job timed out: the caller fails its requests and stops using the lane
    until `recover` succeeds. `experts`, when set, computes the GPU's part of a step; if not, stock does.
    """

    def __init__(
        self,
        arena: ExpertArena,
        scales: Sequence[ExpertScales],
        shape: ExpertShape,
        pool: CpuKernels,
        cuda: CudaKernels,
        split: SplitState,
    ) -> None:
        self._cuda = cuda
        self._shape = shape
        self._arena, self._scales = arena, scales  # the native tier keeps their addresses
        size = CpuTier.mailbox_bytes(pool, shape.hidden)
        self._map = mmap.mmap(-1, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        self._mailbox = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._alias = cuda.host_register(self._mailbox, len(self._map))
        tier = TierShape(
            layers=arena.layout.layers,
            experts=arena.layout.experts,
            hidden=shape.hidden,
            intermediate=shape.intermediate,
            bits=shape.bits,
            act_limit=shape.act_limit,
            watchdog_ms=WATCHDOG_MS,
        )
        self._tier = CpuTier(pool, tier, _addresses(arena, scales), self._mailbox)
        self.pool = pool
        self.split = split
        self.enabled = True
        self.own_kernels = True  # whether build_tiers shall make `experts`
        self.experts: GpuExperts | None = None
        self._sequence = 0
        self._steps = 0
        self._seen = (0, 0, 0, 0, 0)
        self._busy_s = 0.0
        # Other layers each time: where all experts are in slots by now, nothing can be timed.
        self._probes = 0
        self._timed_from: int | None = None  # admissions when the timing of copies began
        # Of the timed step's layers: beginning and end of the copies, the end of the GPU's expert kernels.
        self._computed: list[tuple[torch.cuda.Event, torch.cuda.Event, torch.cuda.Event]] = []
        self.track_every = TRACK_EVERY

    def fill(self, step: StepStruct, x: torch.Tensor, weights: torch.Tensor) -> None:
        """Add the CPU tier's part to a step: x fp16 [rows, hidden], weights fp16 [rows, picks]."""
        if not self.enabled:
            step.mailbox = step.runs = 0
            return
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        step.sequence = self._sequence
        step.per_row = self._shape.picks_per_row
        step.hidden = self._shape.hidden
        step.x = x.data_ptr()
        step.weights = weights.data_ptr()
        step.mailbox = self._alias
        step.runs = 0 if self.experts is None else self.experts.runs
        step.gpu_share = self.split.share
        step.dither = self.split.offset

        probe = (step.layer + self._probes) % PROBE_LAYERS
        if self._timed_from is None or probe > 1:
            return
        # A lane that gets nothing is measured all the same: it may have become the better one.
        if probe == 0:
            step.dither = max(step.dither, 1.0)
        else:
            step.gpu_share = step.dither = 0.0

    def begin(
        self, step: StepStruct, x: torch.Tensor, picks: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Enqueue all that `experts` does of a filled step with runs; returns the weights for stock's kernels."""
        experts = self.experts
        assert experts is not None
        timed = experts.begin(step, (x, picks, weights), timed=self._timed_from is not None)
        if timed is not None:
            self._computed.append(timed)
        return experts.no_weights[picks.shape[0]]

    def combine(self, residency: Residency, step: StepStruct, final: torch.Tensor) -> None:
        """Enqueue the wait and the addition for a filled step. final: float32 [..., hidden]."""
        if not step.mailbox:
            return None
        if step.runs and self.experts is not None:
            return self.experts.end(step, final)
        stream = residency.stream()
        if self._timed_from is not None and residency.gather_times:
            computed = torch.cuda.Event(enable_timing=True)
            computed.record()
            self._computed.append((*residency.gather_times[-1], computed))
        self._cuda.mailbox_wait(step, stream)
        return self._cuda.combine(residency.state, step, final.data_ptr(), stream)

    @property
    def shape(self) -> ExpertShape:
        return self._shape

    def counters(self) -> TierStats:
        """The native tier's totals."""
        return self._tier.stats()

    @property
    def failed(self) -> bool:
        return self.enabled and self._tier.stats().aborted

    def recover(self) -> bool:
        """Try to use the lane again after a failure; False while the hung job still runs."""
        self.enabled = self._tier.reset()
        return self.enabled

    def after_step(self, residency: Residency) -> None:
        """Once per decode step; every `track_every` steps (two at least) the split follows what was measured.

        The copies of the step before are timed for it.
        """
        self._steps += 1
        if self.split.frozen:
            return
        if (self._steps + 1) % self.track_every == 0 and residency.gather_times is None:
            self._timed_from = residency.counters()["admitted"]
            self._probes += 1
            residency.gather_times = []
            self._computed = []
            return
        if self._steps % self.track_every:
            return
        counters = residency.counters()
        link_experts, link_busy_s = self._timed_copies(residency, counters["admitted"])
        stats = self._tier.stats()
        now = (counters["steps"], counters["hits"], counters["misses"], stats.experts, stats.jobs)
        layers, hits, misses, experts, jobs = (a - b for a, b in zip(now, self._seen, strict=True))
        busy_s = stats.busy_ns / 1e9 - self._busy_s
        self._seen, self._busy_s = now, stats.busy_ns / 1e9
        kernel_calls, kernels_s = self._timed_kernels()
        sample = LaneSample(
            layers, hits, misses, experts, jobs, busy_s, link_experts, link_busy_s, kernel_calls, kernels_s
        )  # fmt: skip
        self.split = track(self.split, sample)

    def _timed_copies(self, residency: Residency, admitted: int) -> tuple[int, float]:
        """(experts copied, seconds) since the timing began; ends it. The device must be idle."""
        began, self._timed_from = self._timed_from, None
        if began is None:
            return 0, 0.0
        spans, residency.gather_times = residency.gather_times, None
        if not spans:  # a measurement from outside took them
            return 0, 0.0
        return admitted - began, sum(before.elapsed_time(after) for before, after in spans) / 1e3

    def _timed_kernels(self) -> tuple[int, float]:
        """(layers, seconds from the end of their copies to the end of the GPU's expert kernels).

        Our own kernels run beside the copies: only a layer that copied something shows what comes after.
        """
        spans, self._computed = self._computed, []
        least_ms = 0.0 if self.experts is None else LEAST_COPY_MS
        times = [
            ended.elapsed_time(computed)
            for began, ended, computed in spans
            if began.elapsed_time(ended) >= least_ms
        ]
        return len(times), sum(times) / 1e3

    def stats(self) -> dict[str, object]:
        """Counters for /stats (names of the existing deployment where the meaning is the same)."""
        stats = self._tier.stats()
        jobs = max(1, stats.jobs)
        costs = self.split.costs
        return {
            "enabled": self.enabled,
            "own_kernels": self.experts is not None,
            "isa": self.pool.isa,
            "threads": self.pool.threads,
            "host_jobs": stats.jobs,
            "cpu_experts": stats.experts,
            "cpu_experts_per_call": round(stats.experts / jobs, 3),
            "host_busy_ms_per_job": round(stats.busy_ns / 1e6 / jobs, 4),
            "host_busy_max_ms": round(stats.max_busy_ns / 1e6, 3),
            "timeouts": stats.timeouts,
            "gpu_share": round(self.split.share, 4),
            "gpu_share_offset": round(self.split.offset, 4),
            "link_ms_per_expert": round(costs.link_s * 1e3, 4),
            "cpu_ms_per_expert": round(costs.cpu_s * 1e3, 4),
            "fixed_ms_per_layer": round(costs.fixed_s * 1e3, 4),
            "kernels_ms_per_layer": round(costs.kernels_s * 1e3, 4),
        }

    def close(self) -> bool:
        """Stop the native thread. The GPU must have no step in flight.

        False when a worker of the pool was lost inside a job: a thread still waits for it, so what it
        may touch is kept for good.
        """
        ended = self._tier.close()
        if not ended:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        self._cuda.host_unregister(self._mailbox)
        return ended


def _addresses(arena: ExpertArena, scales: Sequence[ExpertScales]) -> list[tuple[int, ...]]:
    """Nine addresses per expert in key order: gate, up, down x trellis, suh, svh."""
    layout = arena.layout
    rows: list[tuple[int, ...]] = []
    for layer, scale in enumerate(scales):
        parts = (scale.gate, scale.up, scale.down)
        for expert in range(layout.experts):
            record = arena.home + (layer * layout.experts + expert) * layout.record_bytes
            row: list[int] = []
            for part, (suh, svh) in enumerate(parts):
                row += [
                    record + layout.offsets[part],
                    suh[expert].data_ptr(),
                    svh[expert].data_ptr(),
                ]
            rows.append(tuple(row))
    return rows
