"""Multi-head latent attention computed in its latent space.

transformers expands the whole cached context to keys and values on every step, which makes a token
cost as much as a prefill once the context is long. Here the up-projection moves to the query and the
output instead: the same sums in another order, and the cache is read as it is stored.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextAttention

from glm53ctl.errors import BadModel


class LatentAttention(nn.Module):
    """Stands in for a loaded Glm5NextTextAttention that runs its own indexer: same call, same cache.

    Shapes: B sequences, S new tokens, C cached tokens, H heads, L latent width.
    """

    def __init__(self, attention: Glm5NextTextAttention) -> None:
        super().__init__()
        if attention.indexer is None or attention.next_skip_topk:
            raise BadModel("config.json: indexer_types must be full for every attention layer")
        self.inner = attention
        self.indexer = attention.indexer
        up = attention.kv_b_proj.weight.view(attention.num_heads, -1, attention.kv_lora_rank)
        self.key_up = up[:, : attention.qk_nope_head_dim]  # [H, key, L]
        self.value_up = up[:, attention.qk_nope_head_dim :].transpose(1, 2)  # [H, L, value]

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor, past_key_values: Any, **_: object
    ) -> tuple[Tensor, None, None]:
        """hidden_states [B, S, hidden] to the same; the Nones are outputs that nobody asks for."""
        inner = self.inner
        batch, new_tokens = hidden_states.shape[:2]
        query_latent = inner.q_a_layernorm(inner.q_a_proj(hidden_states))
        query = inner.q_b_proj(query_latent).view(batch, new_tokens, inner.num_heads, -1)
        query = query.transpose(1, 2) @ self.key_up  # [B, H, S, L]
        latent = inner.kv_a_layernorm(inner.kv_a_proj_with_mqa(hidden_states)).unsqueeze(1)
        latent, _ = past_key_values.update(latent, latent[..., :0], inner.layer_idx)  # [B, 1, C, L]
        chosen = self.indexer(
            hidden_states=hidden_states,
            q_resid=query_latent,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
        )
        context = latent.expand(-1, inner.num_heads, -1, -1)
        mixed = F.scaled_dot_product_attention(
            query, context, context, _mask(chosen, latent.shape[2]), scale=inner.scaling
        )
        values = (mixed @ self.value_up).transpose(1, 2).reshape(batch, new_tokens, -1)
        return inner.o_proj(values), None, None


def _mask(chosen: Tensor, context: int) -> Tensor:
    """Bool [B, 1, S, C] from positions [B, S, any], where a negative one means nothing."""
    batch, new_tokens = chosen.shape[:2]
    mask = torch.zeros(batch, new_tokens, context + 1, dtype=torch.bool)
    # Column 0 takes the places without a position, and is dropped.
    mask.scatter_(-1, chosen.clamp(-1, context - 1).long() + 1, True)
    return mask[:, None, :, 1:]
