"""Look one layer ahead: while layer l + 1 computes its attention the link is idle, so the experts that
its router would pick for layer l's input are copied then.

A guess moves bytes, never results: a wrong one costs a slot and idle link time. Only single-stream
decode is looked ahead; with more rows the link is busy anyway.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from glm53_server.moe.residency import Residency

Guess = Callable[[int, torch.Tensor], torch.Tensor | None]
"""guess(layer, x): expert ids int64 [1, n] of that layer for x fp16 [1, hidden], best first."""

GATHER_BLOCKS = 16  # enough to fill the link, few enough to leave the other kernels their place


class Lookahead:
    """Owns a side stream. All calls come from the engine thread, in layer order.

    limit: experts copied per layer at most: what the link moves while a layer computes.
    """

    def __init__(self, residency: Residency, guess: Guess, limit: int) -> None:
        self._residency = residency
        self._guess = guess
        self.limit = limit
        self._stream = torch.cuda.Stream(residency.device)
        self._steps = [residency.new_step(layer) for layer in range(residency.layout.layers)]
        for step in self._steps:
            step.lookahead = 1
        self._guessed: torch.Tensor | None = None
        self._pending: int | None = None
        self._ready = torch.cuda.Event()
        self._done = torch.cuda.Event()

    def after_route(self, layer: int, x: torch.Tensor) -> None:
        """Guess the next layer's picks from this layer's input, on the compute stream."""
        following = layer + 1
        self._guessed = None
        if self.limit and following < len(self._steps):
            self._guessed = self._guess(following, x)

    def after_experts(self, layer: int) -> None:
        """This layer's kernels are enqueued: copy the guess for the next one behind them."""
        picks = self._guessed
        if picks is None:
            return
        following = layer + 1
        residency = self._residency
        self._ready.record(torch.cuda.current_stream(residency.device))
        self._stream.wait_event(self._ready)
        step = self._steps[following]
        step.picks, step.num_picks = picks.data_ptr(), picks.numel()
        step.admit_limit = self.limit
        stream = self._stream.cuda_stream
        residency.kernels.cache_step(residency.ahead_state, step, stream)
        residency.kernels.gather(residency.ahead_state, GATHER_BLOCKS, stream)
        self._done.record(self._stream)
        self._pending = following

    def before_step(self) -> None:
        """The compute stream is about to read or change residency: wait for the guess's copies."""
        if self._pending is not None:
            torch.cuda.current_stream(self._residency.device).wait_event(self._done)
            self._pending = None
