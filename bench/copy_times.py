"""What the copies of a decode step take, from a few steps: two events per layer cost the host time that
bounds fast mode.

No step waits for the device: the events and the counters are read at the end.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[1:1] = [str(ROOT), str(ROOT / "server"), str(ROOT / "kernels")]

from glm53_kernels.cuda import COUNTERS  # noqa: E402
from glm53_server.moe.residency import Residency  # noqa: E402

# Odd: the CPU lane times one step in a power of 2, and the two must not meet every time.
TIMED_EVERY = 9
ADMITTED = COUNTERS.index("admitted")

Spans = list[tuple[torch.cuda.Event, torch.cuda.Event]]


class CopyTimes:
    """Call `begin` before and `end` after each measured step; then, with the device idle, the figures.
    Without a residency, of stock's engine, nothing is timed.

    A step in which the CPU lane times its own copies is left to it: the next one is taken instead. Where this
    one comes first, the lane goes on without that measurement.
    """

    def __init__(self, residency: Residency | None) -> None:
        self._residency = residency
        self._wait = TIMED_EVERY // 2  # steps until the next timed one; a short run has one too
        self._spans: Spans | None = None
        self._began = 0.0
        self._taken: list[tuple[Spans, torch.Tensor, torch.Tensor]] = []
        self._admitted: torch.Tensor | None = None
        self.steps = 0
        self.produced = 0
        self.wall_s = 0.0  # of the timed steps, which are not as fast as the others

    def begin(self) -> None:
        """A step comes: time its copies if it is due."""
        self._wait -= 1
        residency = self._residency
        if self._wait >= 0 or residency is None or residency.gather_times is not None:
            return
        self._wait = TIMED_EVERY - 1
        self._began = time.perf_counter()
        self._admitted = admitted_now(residency)
        self._spans = residency.gather_times = []

    def end(self, produced: int) -> None:
        """The step has come out, with so many tokens."""
        residency = self._residency
        if residency is None or self._spans is None or self._admitted is None:
            return
        residency.gather_times = None
        self._taken.append((self._spans, self._admitted, admitted_now(residency)))
        self._spans = self._admitted = None
        self.steps += 1
        self.produced += produced
        self.wall_s += time.perf_counter() - self._began

    def ms_per_step(self) -> float:
        """Mean over the timed steps."""
        return self._ms() / max(1, self.steps)

    def experts_per_s(self) -> float:
        """While copies ran."""
        moved = sum(int(after) - int(before) for _, before, after in self._taken)
        return 1e3 * moved / max(self._ms(), 1e-6)

    def _ms(self) -> float:
        return sum(a.elapsed_time(b) for spans, _, _ in self._taken for a, b in spans)


def admitted_now(residency: Residency) -> torch.Tensor:
    """The counter as the compute stream has it here: a copy on the device, for which nothing waits."""
    return residency._arrays["counters"][ADMITTED].clone()
