"""The routed experts of one layer, computed straight from their trellis bytes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig

from glm53_kernels import CpuKernels, Expert, ExpertTable, Picks
from glm53_server.engine.cpu_weights import Weights


class TrellisExperts(nn.Module):
    """Stands in for transformers' experts module: the same call, no float weights."""

    def __init__(
        self, kernels: CpuKernels, weights: Weights, module: str, config: Glm5NextTextConfig
    ) -> None:
        super().__init__()
        self._kernels = kernels
        # The table holds addresses; the experts keep the memory behind them alive.
        self._experts = [
            Expert(
                *(weights.exl3(f"{module}.{expert}.{part}_proj") for part in ("gate", "up", "down"))
            )
            for expert in range(config.n_routed_experts)
        ]
        self._table = ExpertTable(self._experts, act_limit=config.swiglu_limit)

    def forward(self, hidden: Tensor, chosen: Tensor, routing_weights: Tensor) -> Tensor:
        """hidden float32 [rows, hidden]; chosen and routing_weights [rows, experts per token]."""
        rows, per_row = chosen.shape
        picks = Picks(
            rows * per_row,
            chosen.to(torch.int32).contiguous(),
            torch.arange(rows, dtype=torch.int32).repeat_interleave(per_row),
            routing_weights.contiguous(),
        )
        out = torch.zeros_like(hidden)
        self._kernels.expert_forward(self._table, hidden.contiguous(), out, rows=rows, picks=picks)
        return out
