"""Linear attention for training: the gated delta rule in chunks, with matrix products only.

The decay between two positions of a chunk is a quotient of cumulative decays. Each is taken relative
to the chunk's middle; a chunk is so short that neither factor leaves float32's range.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 16  # 8 steps of at most exp(-5) on either side of the middle


def chunked_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    **options: Any,
) -> tuple[Tensor, None]:
    """Outputs [batch, time, heads, width] of a fresh sequence.

    query, key, value, g (log decay): [batch, time, heads, width]; beta: [batch, time, heads]. Of the
    options only a fresh state is supported, with normalised query and key.
    """
    assert options.get("initial_state") is None
    assert not options.get("output_final_state")
    assert options.get("use_qk_l2norm_in_kernel")
    time, width, dtype = query.shape[1], query.shape[-1], query.dtype
    with torch.autocast(query.device.type, enabled=False):
        q, k, v, decay = (_chunks(x) for x in (query, key, value, g))
        strength = _chunks(beta[..., None])
        q, k = _unit(q) * width**-0.5, _unit(k)
        out = _chunk_outputs(q, k, v, decay.cumsum(-2), strength)
    batch, heads = out.shape[:2]
    out = out.reshape(batch, heads, -1, width)[:, :, :time]
    return out.transpose(1, 2).contiguous().to(dtype), None


def _chunk_outputs(q: Tensor, k: Tensor, v: Tensor, total: Tensor, strength: Tensor) -> Tensor:
    """All [batch, heads, chunks, chunk, width]; `total` is the decay since the chunk began."""
    middle = total[..., CHUNK // 2 - 1 : CHUNK // 2, :]
    up, down = (total - middle).exp(), (middle - total).exp()
    past = (k * down).transpose(-1, -2)
    written = k * strength
    mixing = -_below((written * up) @ past, diagonal=-1)
    solved = _inverse(mixing)
    values = solved @ (v * strength)
    erased = solved @ (written * total.exp())
    reads = _below((q * up) @ past, diagonal=0)
    last = total[..., -1:, :]
    kept = (k * (last - total).exp()).transpose(-1, -2)
    fade = last.exp().transpose(-1, -2)
    states, news = _over_chunks(values, erased, kept, fade)
    return (q * total.exp()) @ states + reads @ news


def _over_chunks(
    values: Tensor, erased: Tensor, kept: Tensor, fade: Tensor
) -> tuple[Tensor, Tensor]:
    """The state before each chunk, and what each chunk adds to it; the one loop that is sequential."""
    state = values.new_zeros(*values.shape[:2], kept.shape[-2], values.shape[-1])
    states, news = [], []
    for i in range(values.shape[2]):
        states.append(state)
        news.append(values[:, :, i] - erased[:, :, i] @ state)
        state = state * fade[:, :, i] + kept[:, :, i] @ news[-1]
    return torch.stack(states, 2), torch.stack(news, 2)


def _inverse(strict: Tensor) -> Tensor:
    """(1 - strict)^-1 for strictly lower triangular chunks: the Neumann series, by doubling."""
    one = torch.eye(CHUNK, dtype=strict.dtype, device=strict.device)
    total, power = one + strict, strict
    for _ in range(CHUNK.bit_length() - 2):
        power = power @ power
        total = total + total @ power
    return total


def _below(x: Tensor, diagonal: int) -> Tensor:
    """The lower triangle. Above it overflow is possible and harmless, so it is replaced, not scaled."""
    keep = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=x.device).tril(diagonal)
    return torch.where(keep, x, 0.0)


def _chunks(x: Tensor) -> Tensor:
    """[batch, time, heads, width] to float32 [batch, heads, chunks, chunk, width], padded by zeros."""
    x = x.transpose(1, 2).float()
    x = functional.pad(x, (0, 0, 0, -x.shape[2] % CHUNK))
    return x.reshape(*x.shape[:2], -1, CHUNK, x.shape[-1])


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
