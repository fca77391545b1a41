"""Look one layer ahead: while a layer's kernels and the next one's attention run, the link is idle, so
the experts that the next router would pick for this layer's input are copied then.

A guess moves bytes, never results: a wrong one costs a slot and idle link time. The guess and the decision
run on a side stream; the copies are the copy engine's, so that they take no place on the GPU. No stream
waits for them: the next step that finds them done takes them in, and a step that picks what is under way
waits for the rest of the copy, at most some milliseconds.

    compute  cache_step(l)  gather(l)          experts(l)  attention(l+1)  cache_step(l+1)
    side     guess(l+1)               decide
    copies                                   l+1 .................
"""

from __future__ import annotations

import ctypes
import mmap
import time
import weakref
from collections.abc import Callable

import torch

from glm53_kernels.cuda import COPY_BOX_BYTES, MAX_COPIES, CudaKernels, StepStruct
from glm53_server.moe.pace import Pace
from glm53_server.moe.residency import Residency

Guess = Callable[[int, torch.Tensor], torch.Tensor | None]
"""guess(layer, x): expert ids int64 [n] of that layer for x fp16 [rows, hidden], best first, or None."""


AUTO = -1
DRAIN_MS = 3000


class Lookahead:
    """Owns a side stream and a copy thread. All calls come from the engine thread, in layer order.

    limit: experts copied per layer at most; AUTO follows what the steps take, for each number of rows.
    """

    def __init__(self, residency: Residency, guess: Guess, limit: int) -> None:
        self._residency = residency
        self._guess = guess
        self.paces: dict[int, Pace] | None = {} if limit == AUTO else None
        self._pace: Pace | None = None
        self.limit = 1 if limit == AUTO else min(limit, MAX_COPIES)
        self._kernels = residency.kernels
        self._stream = torch.cuda.Stream(residency.device)
        self._steps = [residency.new_step(layer) for layer in range(residency.layout.layers)]
        area = mmap.mmap(-1, -(-COPY_BOX_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE)
        box = ctypes.addressof(ctypes.c_char.from_buffer(area))
        residency.state.copy_box = self._kernels.host_register(box, len(area))
        self._sequence = 0
        self._deciding = False  # a decision was enqueued that no step has waited for
        self._routed, self._gathered, self._decided = (torch.cuda.Event() for _ in range(3))
        self._copier = self._kernels.copier_create(box, residency.layout.record_bytes)
        # Also when nobody closes this object: its thread reads the area as long as it lives.
        self._ender = weakref.finalize(self, _end, self._kernels, self._copier, box, area)

    def new_pass(self, rows: int) -> None:
        """A forward pass begins: take in what a broken-off pass left behind, and set the pace of a decode
        step of so many rows; 0 is any other pass.
        """
        self.before_step()
        if self.failed:
            # What was under way never comes: its slots stay locked, and no step waits for it.
            self._residency.state.copy_box, self.paces, self.limit = 0, None, 0
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
        self.before_step()
        compute = torch.cuda.current_stream(self._residency.device)
        compute.synchronize()
        idle = self._kernels.copier_drain(self._copier, DRAIN_MS)
        if not idle and not self.failed:
            raise RuntimeError(f"copies that were looked ahead did not end within {DRAIN_MS} ms")
        self._kernels.settle(self._residency.state, compute.cuda_stream)

    def before_step(self) -> None:
        """The compute stream is about to read or change residency: wait for the last decision."""
        compute = torch.cuda.current_stream(self._residency.device)
        if self._deciding:
            compute.wait_event(self._decided)
            self._deciding = False
        self._routed.record(compute)

    def after_step(self, layer: int, x: torch.Tensor, picks: torch.Tensor) -> None:
        """This layer's copies are enqueued: guess and copy for the next layer beside its kernels.

        x: the layer's input fp16 [rows, hidden]; picks: what it computes with, int64.
        """
        following = layer + 1
        if following >= len(self._steps) or not self.limit:
            return
        self._gathered.record(torch.cuda.current_stream(self._residency.device))
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._routed)
            guessed = self._guess(following, x)
            if guessed is None:
                return
            self._stream.wait_event(self._gathered)
            self._decide(self._steps[following], guessed, picks)
            self._decided.record(self._stream)
        self._deciding = True

    def _decide(self, step: StepStruct, guessed: torch.Tensor, picks: torch.Tensor) -> None:
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        step.lookahead = 1
        step.sequence, step.admit_limit = self._sequence, self.limit
        step.picks, step.num_picks = guessed.data_ptr(), guessed.numel()
        step.protected_picks, step.num_protected = picks.data_ptr(), picks.numel()
        self._kernels.cache_step(self._residency.state, step, self._stream.cuda_stream)

    def close(self) -> None:
        """End the copy thread. The GPU must have no step in flight. Idempotent."""
        self._residency.state.copy_box = 0
        self._ender()


def _end(kernels: CudaKernels, copier: int, box: int, area: mmap.mmap) -> None:
    """The area stays until the thread has ended, whatever the device says."""
    kernels.copier_destroy(copier)
    kernels.host_unregister(box)
    del area
