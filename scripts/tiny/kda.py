"""Linear attention for training: the gated delta rule in chunks, with matrix products only.

The decay between two positions of a chunk is a quotient of cumulative decays. Each is taken relative
to the chunk's middle; a chunk is so short that neither factor leaves float32's range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 32  # 16 steps of at most exp(-5) on either side of the middle


class DeltaRule:
    """Outputs of fresh sequences. `goes_on` [batch, chunks], if it is set: whether the conversation in a
    chunk continues in the next one; where it does not, nothing is remembered.
    """

    def __init__(self) -> None:
        self.goes_on: Tensor | None = None
        self.prepare: Callable[..., tuple[Tensor, ...]] = prepared

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **options: Any
    ) -> tuple[Tensor, None]:
        """query, key, value, g (log decay): [batch, time, heads, width]; beta: [batch, time, heads]. Of
        the options only a fresh state is supported, with normalised query and key.
        """
        assert options.get("initial_state") is None
        assert not options.get("output_final_state")
        assert options.get("use_qk_l2norm_in_kernel")
        time, width, dtype = query.shape[1], query.shape[-1], query.dtype
        with torch.autocast(query.device.type, enabled=False):
            values, erased, kept, fade, asked, reads = self.prepare(query, key, value, g, beta)
            if self.goes_on is not None:
                stays = self.goes_on[:, None, :, None, None].to(kept.dtype)
                kept, fade = kept * stays, fade * stays
            states, news = _over_chunks(values, erased, kept, fade)
            out = asked @ states + reads @ news
        batch, heads = out.shape[:2]
        out = out.reshape(batch, heads, -1, width)[:, :, :time]
        return out.transpose(1, 2).contiguous().to(dtype), None


def prepared(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """Everything that needs no state, of all chunks at once, [batch, heads, chunks, chunk, ...]."""
    q, k, v, g, strength = (_chunks(x) for x in (q, k, v, g, beta[..., None]))
    q, k, total = _unit(q) * q.shape[-1] ** -0.5, _unit(k), g.cumsum(-2)
    middle = total[..., CHUNK // 2 - 1 : CHUNK // 2, :]
    up, down, decayed = (total - middle).exp(), (middle - total).exp(), total.exp()
    past = (k * down).transpose(-1, -2)
    written = k * strength
    solved = _inverse(-_below((written * up) @ past, diagonal=-1))
    values = solved @ (v * strength)
    erased = solved @ (written * decayed)
    reads = _below((q * up) @ past, diagonal=0)
    last = total[..., -1:, :]
    kept = (k * (last - total).exp()).transpose(-1, -2)
    return values, erased, kept, last.exp().transpose(-1, -2), q * decayed, reads


def _over_chunks(
    values: Tensor, erased: Tensor, kept: Tensor, fade: Tensor
) -> tuple[Tensor, Tensor]:
    """The state before each chunk, and what each chunk adds to it; the one loop that is sequential."""
    batch, heads = values.shape[:2]
    state = values.new_zeros(batch * heads, kept.shape[-2], values.shape[-1])
    states, news = [], []
    # Unbound, not indexed: the gradient of an index is a whole tensor of zeros.
    steps = zip(*(x.flatten(0, 1).unbind(1) for x in (values, erased, kept, fade)), strict=True)
    for value, erase, keep, left in steps:
        states.append(state)
        news.append(torch.baddbmm(value, erase, state, alpha=-1))
        state = torch.baddbmm(state * left, keep, news[-1])
    both = (torch.stack(x, 1).unflatten(0, (batch, heads)) for x in (states, news))
    return next(both), next(both)


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
    if missing := -x.shape[2] % CHUNK:
        x = functional.pad(x, (0, 0, 0, missing))
    return x.reshape(*x.shape[:2], -1, CHUNK, x.shape[-1])


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
