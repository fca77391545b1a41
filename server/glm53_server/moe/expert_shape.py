"""What all routed experts of a model have in common."""

from __future__ import annotations

from dataclasses import dataclass

from glm53_kernels.cuda_experts import BLOCK, MOST_RUNS, RUN_ROWS


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """Sizes of one routed expert. act_limit: the SwiGLU clamp, 0 for none."""

    hidden: int
    intermediate: int
    bits: tuple[int, int, int]
    act_limit: float
    picks_per_row: int

    @property
    def on_gpu(self) -> bool:
        """Whether fast mode's own GPU kernels know such experts; if not, stock's compute them."""
        gate, up, down = self.bits
        return (
            gate == up
            and all(1 <= bits <= 8 for bits in (gate, down))
            and self.hidden % BLOCK == self.intermediate % BLOCK == 0
            and self.picks_per_row * RUN_ROWS <= MOST_RUNS
        )
