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
from collections.abc import Callable

import torch

from glm53_kernels.cuda import COPY_BOX_BYTES, MAX_COPIES, StepStruct
from glm53_server.moe.residency import Residency

Guess = Callable[[int, torch.Tensor], torch.Tensor | None]
"""guess(layer, x): expert ids int64 [n] of that layer for x fp16 [rows, hidden], best first, or None."""


AUTO = -1
MOST_COPIES = 4
PACE_EVERY = 128  # steps between two looks at how long the link is idle
SLACK = 0.3  # of a copy may outlast the idle time
DRAIN_MS = 3000


def copies_that_fit(idle_s: float, copy_s: float) -> int:
    """How many experts the link moves in the time that it is idle per layer. Pure."""
    if copy_s <= 0:
        return 0
    return int(max(0.0, min(float(MOST_COPIES), idle_s / copy_s + SLACK)))


class Lookahead:
    """Owns a side stream and a copy thread. All calls come from the engine thread, in layer order.

    limit: experts copied per layer at most; AUTO follows what the link moves while a layer computes.
    """

    def __init__(self, residency: Residency, guess: Guess, limit: int) -> None:
        self._residency = residency
        self._guess = guess
        self._auto = limit == AUTO
        self.limit = 1 if self._auto else min(limit, MAX_COPIES)
        self._passes = 0
        self._timed: list[tuple[torch.cuda.Event, torch.cuda.Event]] | None = None
        self.copy_s = 0.0
        self.idle_s = 0.0
        self._kernels = residency.kernels
        self._stream = torch.cuda.Stream(residency.device)
        self._steps = [residency.new_step(layer) for layer in range(residency.layout.layers)]
        self._map = mmap.mmap(-1, -(-COPY_BOX_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE)
        self._box = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        residency.state.copy_box = self._kernels.host_register(self._box, len(self._map))
        self._copier = self._kernels.copier_create(self._box, residency.layout.record_bytes)
        self._sequence = 0
        self._deciding = False  # a decision was enqueued that no step has waited for
        self._routed, self._gathered, self._decided = (torch.cuda.Event() for _ in range(3))
        if self._auto:
            self.copy_s = measured_copy_s(residency)

    def new_pass(self) -> None:
        """A forward pass begins: take in what a broken-off pass left behind, and now and then the pace."""
        timed, self._timed = self._timed, None
        self.before_step()
        if not self._auto:
            return
        if timed and all(end.query() for _, end in timed):
            self.idle_s = sum(a.elapsed_time(b) for a, b in timed) / 1e3 / len(timed)
            self.limit = copies_that_fit(self.idle_s, self.copy_s)
        self._passes += 1
        if self._passes % PACE_EVERY == 0:
            self._timed = []

    @property
    def failed(self) -> bool:
        """True once a copy failed: nothing is looked ahead any more."""
        return self._kernels.copier_failed(self._copier)

    def drain(self) -> None:
        """Wait for the copies under way and take them in. Waits for the device."""
        self.before_step()
        compute = torch.cuda.current_stream(self._residency.device)
        compute.synchronize()
        self._kernels.copier_drain(self._copier, DRAIN_MS)
        self._kernels.settle(self._residency.state, compute.cuda_stream)

    def before_step(self) -> None:
        """The compute stream is about to read or change residency: wait for the last decision."""
        compute = torch.cuda.current_stream(self._residency.device)
        if self._deciding:
            compute.wait_event(self._decided)
            self._deciding = False
        if self._timed:
            self._timed[-1][1].record(compute)
        self._routed.record(compute)

    def after_step(self, layer: int, x: torch.Tensor, picks: torch.Tensor) -> None:
        """This layer's copies are enqueued: guess and copy for the next layer beside its kernels.

        x: the layer's input fp16 [rows, hidden]; picks: what it computes with, int64.
        """
        following = layer + 1
        if following >= len(self._steps):
            return
        if self._timed is not None:
            spans = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            spans[0].record(torch.cuda.current_stream(self._residency.device))
            self._timed.append(spans)
        if not self.limit:
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
        """End the copy thread. The GPU must have no step in flight."""
        self._residency.state.copy_box = 0
        self._kernels.copier_destroy(self._copier)
        self._kernels.host_unregister(self._box)


def measured_copy_s(residency: Residency) -> float:
    """Seconds that the copy engine takes for one expert. Locks no slot: it writes to memory of its own."""
    layout = residency.layout
    target = torch.empty(layout.record_bytes, dtype=torch.uint8, device=residency.device)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    keys = range(0, layout.layers * layout.experts, max(1, layout.layers * layout.experts // 16))
    start.record()
    for key in keys:
        source = residency.state.home + key * layout.record_bytes
        residency.kernels.copy_async(
            target.data_ptr(), source, layout.record_bytes, residency.stream()
        )
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / len(keys)
