"""Look one layer ahead: while a layer's kernels and the next one's attention run, the link is idle, so
the experts that the next router would pick for this layer's input are copied then.

A guess moves bytes, never results: a wrong one costs a slot and idle link time. The guess and the decision
run on a side stream; the copies are the copy engine's, so that they take no place on the GPU. No stream
waits for them: the next step that finds them done takes them in, and a step that picks what is under way
waits for the rest of the copy, at most some milliseconds.

    compute  cache_step(l)  gather(l)          experts(l)  attention(l+1)  cache_step(l+1)
    ahead    guess(l+1)               decide
    copies                                   l+1 .................
"""

from __future__ import annotations

import ctypes
import mmap
import time
import weakref
from collections.abc import Callable

import torch

from glm53_kernels.cuda import COPY_BOX_BYTES, MAX_COPIES, CudaKernels
from glm53_kernels.cuda_experts import AheadStruct
from glm53_server.moe.pace import Pace
from glm53_server.moe.residency import Residency
from glm53_server.moe.routers import Routers
from glm53_server.moe.step_events import StepEvents

GuessOverride = Callable[[int, int], torch.Tensor]
"""override(layer, rows): a fixed tensor that will hold the guess, int64 [n], best first (synthetic routing)."""

AUTO = -1
DRAIN_MS = 3000


class Lookahead:
    """Owns a side stream and a copy thread; one per residency. All calls come from the engine thread, in
    layer order.

    routers may be None with an override only. limit: experts copied per layer at most; AUTO
    follows what the steps take, for each number of rows. With an override the routers still run, for their time.
    """

    def __init__(
        self,
        residency: Residency,
        routers: Routers | None,
        limit: int,
        events: StepEvents,
        override: GuessOverride | None = None,
    ) -> None:
        self._residency = residency
        self._routers = routers
        layers = residency.layout.layers
        self._structs = [None] * layers if routers is None else routers.structs
        self._override = override
        self._events = events
        self.paces: dict[int, Pace] | None = {} if limit == AUTO else None
        self._pace: Pace | None = None
        self.limit = 1 if limit == AUTO else min(limit, MAX_COPIES)
        self._kernels = residency.kernels
        self._compute = torch.cuda.current_stream(residency.device)
        self._stream = torch.cuda.Stream(residency.device)
        self._steps = [residency.new_step(layer) for layer in range(layers)]
        for step in self._steps:
            step.lookahead = 1
        self._ahead = AheadStruct(
            size=ctypes.sizeof(AheadStruct), stream=self._stream.cuda_stream,
            routed=events.routed.cuda_event, copied=events.copied.cuda_event,
            decided=events.decided.cuda_event,
        )  # fmt: skip
        self._sequence = 0
        self._deciding = False  # a decision was enqueued that the compute stream has not waited for
        area = mmap.mmap(-1, -(-COPY_BOX_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE)
        box = ctypes.addressof(ctypes.c_char.from_buffer(area))
        residency.state.copy_box = self._kernels.host_register(box, len(area))
        self._copier = self._kernels.copier_create(
            box, residency.layout.record_bytes, residency.state.copied
        )
        # Also when nobody closes this object: its thread reads the area as long as it lives.
        self._ender = weakref.finalize(self, _end, self._kernels, self._copier, box, area)

    def new_pass(self, rows: int) -> None:
        """A forward pass begins: set the pace of a decode step of so many rows; 0 is any other pass. What a
        broken-off pass left behind is decided before this one.
        """
        self._compute = torch.cuda.current_stream(self._residency.device)
        self.wait()
        if (self.limit or self.paces is not None) and self.failed:
            # What was under way never comes: its slots stay locked, and no step waits for it.
            self._residency.forget_pending()
            self.paces, self.limit = None, 0
        if self.paces is None:
            return
        pace = self.paces.setdefault(rows, Pace(rows)) if rows else None
        if self._pace is not None and pace is not self._pace:
            self._pace.pause()
        self._pace = pace
        self.limit = 0 if pace is None else pace.step(time.monotonic())

    @property
    def failed(self) -> bool:
        """True once a copy failed: nothing is looked ahead any more."""
        return self._kernels.copier_failed(self._copier)

    def drain(self) -> None:
        """Wait for the copies under way and take them in. Waits for the device. Raises RuntimeError when they
        do not end: their slots may not be given to anything else.
        """
        self._compute = torch.cuda.current_stream(self._residency.device)
        self.wait()
        self._compute.synchronize()
        self._stream.synchronize()
        idle = self._kernels.copier_drain(self._copier, DRAIN_MS)
        if not idle and not self.failed:
            raise RuntimeError(f"copies that were looked ahead did not end within {DRAIN_MS} ms")
        self._kernels.settle(self._residency.state, self._compute.cuda_stream)

    def wait(self) -> None:
        """The compute stream is about to read or change residency: let it wait for the last decision."""
        if self._deciding:
            self._compute.wait_event(self._events.decided)
            self._deciding = False

    def before_step(self) -> None:
        """The compute stream is about to decide a step itself."""
        self.wait()
        if self.limit:
            self._events.routed.record(self._compute)

    def copies_enqueued(self) -> None:
        """And has enqueued that step's copies."""
        if self.limit:
            self._events.copied.record(self._compute)

    def after_step(self, layer: int, x: torch.Tensor, picks: torch.Tensor) -> None:
        """This layer's copies are enqueued, `routed` and `copied` will be recorded: guess and copy for the
        next layer beside its kernels. Must come before the next step is enqueued, which may wait for these
        copies: streams can share a queue of the card, where what is enqueued later stands behind that wait.

        x: the layer's input fp16 [rows, hidden]; picks: what it computes with, int64. Both may be overwritten
        once the layer is through: a guess is only a guess, and then no slot of the layer is in use any more.
        """
        following = layer + 1
        if not self.limit or following >= len(self._steps):
            return
        rows, step = x.shape[0], self._steps[following]
        step.admit_limit, step.x, self._ahead.rows = self.limit, x.data_ptr(), rows
        if self._override is not None:
            guess = self._override(following, rows)
            step.picks, step.num_picks = guess.data_ptr(), guess.numel()
        step.protected_picks, step.num_protected = picks.data_ptr(), picks.numel()
        self._sequence = step.sequence = self._sequence % 0xFFFFFFFF + 1  # 0 is none
        self._deciding = True
        self._kernels.look_ahead(self._residency.state, self._structs[following], step, self._ahead)

    def close(self) -> None:
        """End the copy thread. The GPU must have no step in flight. Idempotent."""
        self._residency.state.copy_box = 0
        self._ender()


def _end(kernels: CudaKernels, copier: int, box: int, area: mmap.mmap) -> None:
    """The area stays until the thread has ended, whatever the device says."""
    kernels.copier_destroy(copier)
    kernels.host_unregister(box)
    del area
