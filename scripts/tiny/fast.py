"""Training forms of transformers' Glm5Next modules: the same function, made for many short rows.

Experts are computed for every token and weighted by the router, which for this size beats gathering;
the sparse attention's indexer selects everything below its limit, so it is not run; the router and
the stream mixing stay in float32 under autocast, as they are when the model is served.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.glm5_next import modeling_glm5_next as glm5_next

from .kda import chunked_delta_rule


def prepare(model: nn.Module, *, compiled: bool) -> None:
    """Give a model its training forms. They keep every parameter and its name."""
    glm5_next.chunk_kimi_delta_attention = chunked_delta_rule
    for module in model.modules():
        match module:
            case glm5_next.Glm5NextTextExperts():
                module.forward = _EveryExpert(module)
            case glm5_next.Glm5NextTextTopkRouter():
                module.forward = _InFloat32(module.forward)
            case glm5_next.Glm5NextTextHyperConnection():
                whole = _Compiled(module.forward) if compiled else module.forward
                module.forward = _InFloat32(whole)
            case glm5_next.Glm5NextTextAttention():
                module.indexer.forward = _nothing_selected
                module.build_attention_mask_from_topk = _causal
            case _:
                pass


class _InFloat32:
    def __init__(self, forward: Any) -> None:
        self._forward = forward

    def __call__(self, x: Tensor) -> Any:
        with torch.autocast(x.device.type, enabled=False):
            return self._forward(x)


class _Compiled:
    """All positions as one row: its length is the one dimension that changes from batch to batch.

    Only where gradients are wanted: the questions between have many other lengths.
    """

    def __init__(self, forward: Any) -> None:
        self._plain, self._forward = forward, torch.compile(forward)

    def __call__(self, streams: Tensor) -> tuple[Tensor, ...]:
        if not torch.is_grad_enabled():
            return self._plain(streams)
        row = streams.flatten(0, 1)[None]
        torch._dynamo.mark_dynamic(row, 1)
        return tuple(x[0].unflatten(0, streams.shape[:2]) for x in self._forward(row))


class _EveryExpert:
    def __init__(self, experts: Any) -> None:
        self._experts = experts

    def __call__(self, hidden: Tensor, picks: Tensor, weights: Tensor) -> Tensor:
        """hidden [tokens, hidden], picks and weights [tokens, top-k]."""
        gate_up, down = self._experts.gate_up_proj, self._experts.down_proj
        count, limit = gate_up.shape[0], self._experts.swiglu_limit
        share = weights.new_zeros(len(hidden), count).scatter(1, picks, weights)
        gate, up = (
            functional.linear(hidden, gate_up.flatten(0, 1)).unflatten(1, (count, -1)).chunk(2, -1)
        )
        act = functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
        act = (act * share[..., None].to(act.dtype)).flatten(1)
        return (act @ down.transpose(1, 2).flatten(0, 1)).to(hidden.dtype)


def _nothing_selected(**_: Any) -> None:
    return None


def _causal(*, query_states: Tensor, kv_length: int, **_: Any) -> Tensor:
    seen = torch.ones(kv_length, kv_length, dtype=torch.bool, device=query_states.device).tril()
    return seen[None, None]
