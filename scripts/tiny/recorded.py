"""A function of one tensor, recorded as a CUDA graph: hundreds of launches become one."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch import Tensor

_ROUNDS = 3  # before recording: libraries and the optimiser make their state in the first ones


class Recorded:
    """`function` may change parameters, and must not wait for the device. It is called a few times first.

    What a call returns is overwritten by the next call.
    """

    def __init__(self, function: Callable[[Tensor], tuple[Tensor, ...]], given: Tensor) -> None:
        """given: on the device; its shape and dtype are the ones that can be replayed."""
        gc.collect()  # gradients that are left of another stream would be waited for
        self._given = given.clone()
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            for _ in range(_ROUNDS):
                function(self._given)
        here.wait_stream(side)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._made = function(self._given)

    def __call__(self, given: Tensor) -> tuple[Tensor, ...]:
        """given: in pinned memory or on the device."""
        self._given.copy_(given, non_blocking=True)
        self._graph.replay()
        return self._made
