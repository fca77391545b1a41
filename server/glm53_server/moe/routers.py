"""What the look-ahead asks: the routers of all layers, as the guess kernel reads them.

Guesses run one after the other, so all layers share one scratch and one answer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from glm53_kernels.cuda_router import MOST_GUESSED, RouterStruct


@dataclass(frozen=True, slots=True)
class Gate:
    """One layer's router: logits are x @ weight, scores sigmoid(logits) + bias.

    weight: fp16 [hidden, experts], or the transposed view of [experts, hidden], which is read faster.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    picks: int


class Routers:
    """A struct per layer, and the memory behind them: it must outlive every guess that was enqueued.

    out: int64 ids, the answer of the last guess, in its first structs[layer].picks entries.
    Raises ValueError for a router of another kind.
    """

    def __init__(self, gates: Sequence[Gate]) -> None:
        device = gates[0].weight.device
        experts = max(gate.weight.shape[1] for gate in gates)
        self._gates = list(gates)
        self._scores = torch.zeros(experts, dtype=torch.float32, device=device)
        self._joined = torch.zeros(1, dtype=torch.int32, device=device)
        most = max(gate.picks for gate in gates)
        self.out = torch.zeros(min(most, MOST_GUESSED), dtype=torch.int64, device=device)
        self.structs = [self._struct(gate) for gate in gates]

    def _struct(self, gate: Gate) -> RouterStruct:
        weight, bias = gate.weight, gate.bias
        hidden, experts = weight.shape
        if weight.dtype != torch.float16 or 1 not in weight.stride():
            raise ValueError("a router's weights are not fp16 in one of the two layouts")
        if bias is not None and (bias.dtype != torch.float16 or bias.shape != (experts,)):
            raise ValueError("a router's bias is not fp16 [experts]")
        if bias is not None and not bias.is_contiguous():
            raise ValueError("a router's bias has gaps")
        return RouterStruct(
            size=ctypes.sizeof(RouterStruct), experts=experts, hidden=hidden,
            picks=min(gate.picks, MOST_GUESSED),
            gate=weight.data_ptr(), gate_input_stride=weight.stride(0), gate_expert_stride=weight.stride(1),
            bias=0 if bias is None else bias.data_ptr(),
            scores=self._scores.data_ptr(), joined=self._joined.data_ptr(), out=self.out.data_ptr(),
        )  # fmt: skip
