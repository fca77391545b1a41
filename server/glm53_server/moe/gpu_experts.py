"""Fast mode's own expert kernels: what is in its slot is computed while what is missing is copied.

Stock's kernels, which exact mode uses and every prefill, start when all experts of a layer are there. The
bits of fast mode are not stock's in any case (the CPU computes a part), so here the link need not wait for the
kernels, nor they for the link; stock's kernels are given weights of 0 and compute the shared expert meanwhile.

    compute  route ... shared expert (stock) ............... wait for both, add up
    side     decide   residents              arrived ones
    copies            arriving ones ........
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from glm53_kernels.cuda import StepStruct
from glm53_kernels.cuda_experts import (
    BLOCK,
    MOST_RUNS,
    MOST_SLICES,
    RUN_LIST_BYTES,
    RUN_ROWS,
    ExpertsStruct,
    ForkStruct,
)
from glm53_server.moe.expert_shape import ExpertShape
from glm53_server.moe.residency import COPY_BLOCKS, Residency
from glm53_server.moe.step_events import StepEvents

Pointers = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""exllamav3's trellis, suh and svh pointer tables of one projection: int64 [experts], device."""


Span = tuple[torch.cuda.Event, torch.cuda.Event, torch.cuda.Event]


@dataclass(frozen=True, slots=True)
class ExpertPointers:
    """Where the weights of one layer's experts are. The trellis tables change while it runs."""

    gate: Pointers
    up: Pointers
    down: Pointers


class GpuExperts:
    """The kernels, their scratch memory and their streams. Engine thread only.

    `pointers` must outlive this object. Raises CudaKernelError for a shape that is not `on_gpu`.
    """

    def __init__(
        self,
        residency: Residency,
        pointers: Sequence[ExpertPointers],
        shape: ExpertShape,
        events: StepEvents,
    ) -> None:
        self._residency = residency
        self._kernels = residency.kernels
        self._pointers, self._events = pointers, events  # the structs hold their addresses
        device = residency.device
        self._scratch = _scratch(shape, device)
        self._runs = torch.zeros(RUN_LIST_BYTES // 4, dtype=torch.int32, device=device)
        self.runs = self._runs.data_ptr()
        self.no_weights = [
            torch.zeros(rows, shape.picks_per_row, dtype=torch.float16, device=device)
            for rows in range(RUN_ROWS + 1)
        ]
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._layers = [
            ExpertsStruct(
                size=ctypes.sizeof(ExpertsStruct), hidden=shape.hidden, intermediate=shape.intermediate,
                bits=shape.bits[0], down_bits=shape.bits[2], processors=processors, act_limit=shape.act_limit,
                **_tables(layer), **{name: array.data_ptr() for name, array in self._scratch.items()},
            )
            for layer in pointers
        ]  # fmt: skip
        self._kernels.experts_prepare(self._layers[0])
        self._side, self._copies = (torch.cuda.Stream(device) for _ in range(2))
        self._inner = [torch.cuda.Event() for _ in range(2)]
        for event in self._inner:
            event.record(self._side)
        forked, self._computed = self._inner
        self._fork = ForkStruct(
            size=ctypes.sizeof(ForkStruct), blocks=COPY_BLOCKS, repeats=1,
            side=self._side.cuda_stream, copies=self._copies.cuda_stream,
            routed=events.routed.cuda_event, decided=events.decided.cuda_event,
            forked=forked.cuda_event,
            copied=events.copied.cuda_event, computed=self._computed.cuda_event,
        )  # fmt: skip
        self._held: tuple[torch.Tensor, ...] = ()

    def join(self) -> None:
        """Let the compute stream wait for a layer that a broken-off pass never ended, and that may have been
        enqueued in part only: for all that is on our streams.
        """
        if self._held:
            compute = torch.cuda.current_stream(self._residency.device)
            compute.wait_stream(self._side)
            compute.wait_stream(self._copies)
            self._held = ()

    def begin(
        self, step: StepStruct, inputs: tuple[torch.Tensor, ...], *, timed: bool = False
    ) -> Span | None:
        """Decide a step with `runs`, copy and compute what the GPU takes, beside the compute stream.

        inputs: the tensors that the step points at; they are kept until `end`, because stock frees them.
        timed, where copies are timed: returns their beginning and end, and the end of the last expert kernel.
        """
        self._held = inputs
        residency = self._residency
        step.admit_limit = residency.most_admitted
        fork = self._fork
        fork.repeats = residency.gather_repeats if residency.slots else 0
        times, fork.began, fork.ended, fork.last = residency.gather_times, None, None, None
        span = None
        if times is not None:
            before, after = self._timed(), self._timed()
            fork.began, fork.ended = before.cuda_event, after.cuda_event
            times.append((before, after))
            if timed:
                span = before, after, self._timed()
                fork.last = span[2].cuda_event
        self._kernels.layer_begin(
            residency.state, self._layers[step.layer], step, fork, residency.stream()
        )
        return span

    def end(self, step: StepStruct, final: torch.Tensor) -> None:
        """Add everything to final, float32 [rows, hidden], once it is computed and the CPU has answered."""
        residency = self._residency
        self._kernels.layer_end(
            residency.state, self._layers[step.layer], step, self._fork, final.data_ptr(),
            residency.stream(),
        )  # fmt: skip
        self._held = ()

    def _timed(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._side)
        return event


def _scratch(shape: ExpertShape, device: torch.device) -> dict[str, torch.Tensor]:
    hidden, narrow = shape.hidden, shape.intermediate

    def zeros(count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(count, dtype=dtype, device=device)

    return {
        "act": zeros(MOST_RUNS * narrow, torch.float16),
        "partial": zeros(MOST_RUNS * MOST_SLICES * max(2 * narrow, hidden), torch.float32),
        "y": zeros(MOST_RUNS * hidden, torch.float32),
        "joined": zeros(MOST_RUNS * max(hidden, narrow) // BLOCK, torch.int32),
    }


def _tables(layer: ExpertPointers) -> dict[str, int]:
    return {
        f"{part}_{kind}": table.data_ptr()
        for part, tables in (("gate", layer.gate), ("up", layer.up), ("down", layer.down))
        for kind, table in zip(("trellis", "suh", "svh"), tables, strict=True)
    }
