"""Routing that looks like a large model's: how it is encouraged, and how it is measured.

Popularity is skewed by a fixed correction bias that spreads with depth. Repeats from token to token
are encouraged by a small loss on how fast the scores move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class Router:
    """Watches the routers of a model: `scores` and `picks` of the last forward, per MoE layer."""

    def __init__(self, model: nn.Module) -> None:
        self.scores: list[Tensor] = []
        self.picks: list[Tensor] = []
        self.watching = True
        self._gates = [m for n, m in model.named_modules() if n.endswith("mlp.gate")]
        for gate in self._gates:
            gate.register_forward_hook(self._seen)

    def __len__(self) -> int:
        return len(self._gates)

    def clear(self) -> None:
        self.scores, self.picks = [], []

    def skew(self, spread: float, seed: int) -> None:
        """Set the correction biases: normal, with a spread that grows to `spread` in the last layer."""
        generator = torch.Generator().manual_seed(seed)
        for depth, gate in enumerate(self._gates, 1):
            bias: Any = gate.e_score_correction_bias
            drawn = torch.randn(bias.shape, generator=generator) * spread * depth / len(self)
            bias.copy_(drawn - drawn.mean())

    def movement(self, rows: int) -> Tensor:
        """Mean square change of the scores from one token of a row to the next, over all layers."""
        each = [s.view(rows, -1, s.shape[-1]).float() for s in self.scores]
        return torch.stack([(s[:, 1:] - s[:, :-1]).square().mean() for s in each]).mean()

    def _seen(self, _gate: nn.Module, _inputs: Any, output: Any) -> None:
        logits, _, picks = output
        if self.watching:
            self.scores.append(logits.sigmoid())
            self.picks.append(picks)


@dataclass(frozen=True, slots=True)
class LayerRouting:
    """One layer. `effective` experts is the exponential of the entropy of their popularity."""

    effective: float
    top_quarter_share: float
    repeat_rate: float
    unused: int


def measure(picks: Tensor, used: Tensor, experts: int) -> LayerRouting:
    """From picks [rows, time, top-k] and which positions hold tokens [rows, time]."""
    counts = torch.bincount(picks[used].flatten(), minlength=experts).double()
    share = counts / counts.sum()
    entropy = -(share * share.clamp_min(1e-12).log()).sum()
    quarter = share.sort(descending=True).values[: max(1, experts // 4)].sum()
    both = used[:, 1:] & used[:, :-1]
    again = (picks[:, 1:, :, None] == picks[:, :-1, None, :]).any(-1).double().mean(-1)
    return LayerRouting(
        float(entropy.exp()), float(quarter), float(again[both].mean()), int((counts == 0).sum())
    )
