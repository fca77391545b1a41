"""Training forms of transformers' Glm5Next modules: the same function, made for many tokens at a time.

Experts are computed for every token and weighted by the router, which for this size beats gathering;
the sparse attention's indexer selects everything below its limit, so it is not run; the router and
the stream mixing stay in float32 under autocast, as they are when the model is served.

Rows hold several conversations (`batches.py`). A `Layout` says which position belongs to which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.glm5_next import modeling_glm5_next as glm5_next

from . import kda


class Piece:
    """A pure function of tensors that may be compiled. Questions have other shapes: they use it as it is."""

    def __init__(self, plain: Callable[..., Any]) -> None:
        self.name, self._plain = plain.__name__.strip("_"), plain
        self._compiled: Callable[..., Any] | None = None

    def compile(self) -> None:
        self._compiled = torch.compile(self._plain)

    def give_up(self) -> None:
        self._compiled = None

    def __call__(self, *given: Any) -> Any:
        compiled = self._compiled if torch.is_grad_enabled() else None
        return (compiled or self._plain)(*given)


class Forms:
    """What the modules of one model share: the pieces, and the layout of the rows at hand."""

    def __init__(self) -> None:
        self.enter, self.leave = Piece(_enter), Piece(_leave)
        self.activate, self.convolve = Piece(_activate), Piece(_convolve)
        self.judge = Piece(_judge)
        self.delta_rule = kda.DeltaRule()
        self.delta_rule.prepare = self.prepare = Piece(kda.prepared)
        self.conversations: Tensor | None = None

    def __iter__(self) -> Iterator[Piece]:
        return iter(
            (self.prepare, self.enter, self.activate, self.leave, self.convolve, self.judge)
        )

    def arrange(self, conversations: Tensor | None) -> None:
        """Set which conversation each position belongs to, [rows, width]; None: one in each row."""
        self.conversations = conversations
        goes_on = None
        if conversations is not None:
            first = conversations[:, :: kda.CHUNK]
            goes_on = functional.pad(first[:, 1:].eq(first[:, :-1]), (0, 1))
        self.delta_rule.goes_on = goes_on

    def causal(self, *, query_states: Tensor, kv_length: int, **_: Any) -> Tensor:
        """The mask of the sparse attention."""
        device = query_states.device
        seen = torch.ones(kv_length, kv_length, dtype=torch.bool, device=device).tril()
        if self.conversations is None:
            return seen[None, None]
        same = self.conversations[:, :, None] == self.conversations[:, None, :]
        return (same & seen)[:, None]

    def conv1d(
        self, hidden_states: Tensor, weight: Tensor, *_: Any, **__: Any
    ) -> Tensor:  # fmt: skip
        """hidden_states [rows, channels, width]; the activation is SiLU."""
        return self.convolve(hidden_states, weight)


def prepare(model: nn.Module) -> Forms:
    """Give a model its training forms. They keep every parameter and its name."""
    forms = Forms()
    glm5_next.chunk_kimi_delta_attention = forms.delta_rule
    glm5_next.causal_conv1d_fn = forms.conv1d
    for module in model.modules():
        match module:
            case glm5_next.Glm5NextTextDecoderLayer():
                _form(module, _Layer(module, forms))
            case glm5_next.Glm5NextTextExperts():
                _form(module, _EveryExpert(module, forms))
            case glm5_next.Glm5NextTextTopkRouter():
                _form(module, _InFloat32(module.forward))
            case glm5_next.Glm5NextTextAttention():
                _form(module.indexer, _nothing_selected)
                _mask(module, forms)
            case _:
                pass
    return forms


def _form(module: Any, forward: Callable[..., Any]) -> None:
    module.forward = forward


def _mask(attention: Any, forms: Forms) -> None:
    attention.build_attention_mask_from_topk = forms.causal


class _InFloat32:
    def __init__(self, forward: Any) -> None:
        self._forward = forward

    def __call__(self, x: Tensor) -> Any:
        with torch.autocast(x.device.type, enabled=False):
            return self._forward(x)


class _Layer:
    """Attention and experts, each between two mixings of the streams."""

    def __init__(self, layer: Any, forms: Forms) -> None:
        self._layer, self._forms = layer, forms

    def __call__(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        layer = self._layer
        streams = self._around(layer.attn_hc, layer.input_layernorm, hidden_states,
                               lambda x: self._attention(x, attention_mask))  # fmt: skip
        streams = self._around(layer.ffn_hc, layer.post_attention_layernorm, streams, layer.mlp)
        return streams, None

    def _attention(self, x: Tensor, mask: Tensor | None) -> Tensor:
        made = self._layer.self_attn(hidden_states=x, attention_mask=mask)
        return made[0] if isinstance(made, tuple) else made

    def _around(self, mixing: Any, norm: Any, streams: Tensor, block: Any) -> Tensor:
        weights = (mixing.fn, mixing.base, mixing.scale, norm.weight)
        numbers = (mixing.hc_sinkhorn_iters, mixing.hc_eps, norm.variance_epsilon)
        device = streams.device.type
        with torch.autocast(device, enabled=False):
            expand, mix, x = self._forms.enter(streams, weights, *numbers)
        x = block(x)
        with torch.autocast(device, enabled=False):
            return self._forms.leave(streams, expand, mix, x)


class _EveryExpert:
    def __init__(self, experts: Any, forms: Forms) -> None:
        self._experts, self._forms = experts, forms

    def __call__(self, hidden: Tensor, picks: Tensor, weights: Tensor) -> Tensor:
        """hidden [tokens, hidden], picks and weights [tokens, top-k]."""
        gate_up, down = self._experts.gate_up_proj, self._experts.down_proj
        share = weights.new_zeros(len(hidden), len(gate_up)).scatter(1, picks, weights)
        made = functional.linear(hidden, gate_up.flatten(0, 1))
        act = self._forms.activate(made, share, self._experts.swiglu_limit)
        return (act @ down.transpose(1, 2).flatten(0, 1)).to(hidden.dtype)


def _enter(
    streams: Tensor, weights: tuple[Tensor, ...], rounds: int, eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """streams [rows, width, n, hidden]: the weights for `_leave`, and the normalised input of a block."""
    fn, base, scale, norm = weights
    n = streams.shape[2]
    flat = streams.flatten(2)
    flat = flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    mixed = functional.linear(flat, fn)
    each = torch.sigmoid(mixed[..., : 2 * n] * scale[:2].repeat_interleave(n) + base[: 2 * n])
    mix = (mixed[..., 2 * n :] * scale[2] + base[2 * n :]).unflatten(-1, (n, n)).softmax(-1) + eps
    for _ in range(rounds - 1):  # towards rows and columns that sum to one
        mix = mix / (mix.sum(-2, keepdim=True) + eps)
        mix = mix / (mix.sum(-1, keepdim=True) + eps)
    mix = mix / (mix.sum(-2, keepdim=True) + eps)
    x = ((each[..., :n, None] + eps) * streams).sum(2)
    x = norm * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm_eps))
    return 2 * each[..., n:], mix, x


def _leave(streams: Tensor, expand: Tensor, mix: Tensor, x: Tensor) -> Tensor:
    """The streams after a block whose output is x [rows, width, hidden]."""
    out = expand[..., None] * x.to(streams.dtype)[..., None, :]
    mixed = (mix[..., None] * streams[..., None, :]).sum(2)
    return out + mixed


def _activate(made: Tensor, share: Tensor, limit: float) -> Tensor:
    """made [tokens, experts x 2 x width] and share [tokens, experts] to [tokens, experts x width]."""
    gate, up = made.unflatten(1, (share.shape[1], -1)).chunk(2, -1)
    act = functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    return (act * share[..., None].to(act.dtype)).flatten(1)


def _convolve(x: Tensor, weight: Tensor) -> Tensor:
    """SiLU of a causal convolution of each channel: x [rows, channels, width], weight [channels, taps]."""
    taps, width = weight.shape[1], x.shape[2]
    seen = functional.pad(x, (taps - 1, 0))
    shifted = (weight[:, i, None] * seen[:, :, i : i + width] for i in range(taps))
    return functional.silu(sum(shifted, start=torch.zeros((), device=x.device))).to(x.dtype)


def _judge(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of hidden [tokens, hidden] where targets [tokens] are not -100."""
    logits = functional.linear(hidden, head)
    return functional.cross_entropy(logits.float(), targets.long())


def _nothing_selected(**_: Any) -> None:
    return None
