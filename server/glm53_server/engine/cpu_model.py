"""transformers' Glm5Next text model with an EXL3 checkpoint's weights, in float32 on the CPU.

One call is one forward over one sequence. Owned by one thread; knows nothing of requests.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig
from transformers.models.glm5_next.modeling_glm5_next import (
    Glm5NextTextAttention,
    Glm5NextTextModel,
    Glm5NextTextMoE,
)

from glm53_kernels import CpuKernels
from glm53_server.engine.base import Progress
from glm53_server.engine.cpu_attention import LatentAttention
from glm53_server.engine.cpu_experts import TrellisExperts
from glm53_server.engine.cpu_weights import Weights, text_tensor
from glm53ctl.checkpoint import TEXT_PREFIX, Checkpoint, facts
from glm53ctl.errors import BadModel

Cache = DynamicCache  # the state of one sequence
# Linear attention's work inside a chunk grows with its square, and transformers' default of 64 is
# made for GPUs: 16 halves the time of a prompt here. The result is the same up to rounding.
_KDA_CHUNK = 16


class CpuModel:
    """The language model and its head; `logits` is the whole of it."""

    def __init__(self, text: Glm5NextTextModel, head: Tensor) -> None:
        self._text = text
        self._head = head

    def new_cache(self) -> Cache:
        """The state of an empty sequence; `logits` advances it in place."""
        return DynamicCache(config=self._text.config)

    def routed_experts(self) -> list[nn.Module]:
        """The experts of every MoE layer, in order."""
        mlps = [layer.mlp for layer in self._text.layers]
        return [mlp.experts for mlp in mlps if isinstance(mlp, Glm5NextTextMoE)]

    def logits(self, ids: Sequence[int], cache: Cache, *, every: bool = False) -> Tensor:
        """Append `ids` to a sequence: float32 logits [1, vocab] after the last id, or [ids, vocab]."""
        output = self._text(
            input_ids=torch.tensor([ids]),
            past_key_values=cache,
            use_cache=True,
            chunk_size=_KDA_CHUNK,
        )
        hidden = output.last_hidden_state[0]
        return (hidden if every else hidden[-1:]) @ self._head.t()


def load_model(checkpoint: Checkpoint, kernels: CpuKernels, progress: Progress) -> CpuModel:
    """Read the weights. Raises BadModel naming a tensor that is missing or has another shape."""
    logging.getLogger("transformers").setLevel(logging.ERROR)  # it advises GPU kernel packages
    sizes = facts(checkpoint)
    total_bytes = sizes.resident_bytes + sizes.expert_total_bytes
    weights = Weights(checkpoint, kernels)
    text = _empty_model(checkpoint)
    for index, layer in enumerate(text.layers):
        if isinstance(layer.mlp, Glm5NextTextMoE):
            module = f"{TEXT_PREFIX}layers.{index}.mlp.experts"
            layer.mlp.experts = TrellisExperts(kernels, weights, module, text.config)
            progress("weights", weights.read_bytes, total_bytes)
    state: dict[str, Tensor] = {}
    for target, empty in text.state_dict().items():
        state[target] = _shaped(text_tensor(weights, target), empty.shape, target, checkpoint)
        progress("weights", weights.read_bytes, total_bytes)
    text.load_state_dict(state, assign=True)
    for layer in text.layers:
        if isinstance(layer.self_attn, Glm5NextTextAttention):
            layer.self_attn = LatentAttention(layer.self_attn)
    size = torch.Size((sizes.vocab_size, sizes.hidden))
    head = _shaped(weights.linear("lm_head"), size, "lm_head", checkpoint)
    progress("weights", total_bytes, total_bytes)
    return CpuModel(text, head)


def _empty_model(checkpoint: Checkpoint) -> Glm5NextTextModel:
    """The module tree of config.json on the meta device: shapes without memory."""
    try:
        config = Glm5NextTextConfig(**checkpoint.text_config)
        with torch.device("meta"):
            return Glm5NextTextModel(config).eval().requires_grad_(False)
    except (StrictDataclassError, ValueError, TypeError, AssertionError) as err:
        reason = " ".join(str(err.__cause__ or err).split())
        raise BadModel(f"{checkpoint.path / 'config.json'}: {reason}") from err


def _shaped(tensor: Tensor, shape: torch.Size, name: str, checkpoint: Checkpoint) -> Tensor:
    if tensor.numel() != shape.numel():
        raise BadModel(
            f"{checkpoint.path}: {name} has shape {tuple(tensor.shape)}, "
            f"config.json asks for {tuple(shape)}"
        )
    return tensor.reshape(shape)
