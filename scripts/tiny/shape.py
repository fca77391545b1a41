"""The tiny model's shape, and the files of a dense checkpoint that exllamav3 converts and loads.

exllamav3 takes bfloat16 weights with the mHC parameters, the router's correction bias and the two
decay parameters in float32; float16 norms are refused by its gated norm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .tokens import VOCAB, id_of, write_tokenizer_config

if TYPE_CHECKING:
    import torch

_KEPT_FLOAT32 = ("hc_", "e_score_correction_bias", "A_log", "dt_bias")


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes that differ between the bundled model and a smoke test; all multiples of 128 but counts."""

    vocab: int = VOCAB
    hidden: int = 256
    dense_width: int = 512
    expert_width: int = 128
    layers: int = 6
    experts: int = 32
    experts_per_token: int = 8
    linear_heads: int = 4
    heads: int = 4
    head_width: int = 256
    kv_rank: int = 512
    q_rank: int = 256


TINY = Shape()
SMOKE = Shape(
    vocab=1024, hidden=128, dense_width=128, layers=4, experts=4, experts_per_token=2, linear_heads=1,
    heads=1, head_width=128, kv_rank=128, q_rank=128,
)  # fmt: skip


def text_config(shape: Shape) -> dict[str, Any]:
    """transformers' text configuration; every value that its defaults get wrong is written out."""
    return {
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.dense_width,
        "moe_intermediate_size": shape.expert_width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "n_shared_experts": 1,
        "n_routed_experts": shape.experts,
        "num_experts_per_tok": shape.experts_per_token,
        "routed_scaling_factor": 2.5,
        "kv_lora_rank": shape.kv_rank,
        "q_lora_rank": shape.q_rank,
        "qk_rope_head_dim": 0,
        "qk_nope_head_dim": shape.head_width,
        "v_head_dim": shape.head_width,
        "max_position_embeddings": 65536,
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 4,
        "index_kpool": 4,
        "mlp_layer_types": ["dense"] + ["sparse"] * (shape.layers - 1),
        "pad_token_id": id_of("<|endoftext|>", shape.vocab),
        "eos_token_id": eos_ids(shape),
        "linear_attn_config": {
            "num_heads": shape.linear_heads,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0,
        },
    }


def vision_config(shape: Shape) -> dict[str, Any]:
    """The smallest vision tower; it is not saved, but both libraries want its configuration."""
    width = shape.hidden
    return {
        "depth": 1, "hidden_size": width, "num_heads": 4, "out_hidden_size": width,
        "intermediate_size": width, "projection_intermediate_size": width,
    }  # fmt: skip


def eos_ids(shape: Shape) -> list[int]:
    return [id_of(t, shape.vocab) for t in ("<|endoftext|>", "<|user|>", "<|observation|>")]


def media_ids(shape: Shape) -> dict[str, int]:
    """The ids that the configuration names for media."""
    tokens = {
        "image_token_id": "<|image|>", "video_token_id": "<|video|>",
        "image_start_token_id": "<|begin_of_image|>", "image_end_token_id": "<|end_of_image|>",
        "video_start_token_id": "<|begin_of_video|>", "video_end_token_id": "<|end_of_video|>",
    }  # fmt: skip
    return {key: id_of(token, shape.vocab) for key, token in tokens.items()}


def kept_float32(name: str) -> bool:
    return any(part in name for part in _KEPT_FLOAT32)


def saved(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors to save, in the dtypes exllamav3 accepts; the vision tower stays out."""
    return {
        name: (value.float() if kept_float32(name) else value.bfloat16()).contiguous()
        for name, value in weights.items()
        if not name.startswith("model.visual.")
    }


def write_side_files(folder: Path, shape: Shape) -> None:
    """Complete config.json and write the small files beside it; tokenizer.json exists already."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kinds = ("linear_attention", "deepseek_sparse_attention")  # a checkpoint's names for them
    config["text_config"] |= {
        "layer_types": [kinds[i % 4 == 3] for i in range(shape.layers)],
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "mhc": True,
        "index_kpool_compress": True,
        "linear_attn_config": text_config(shape)["linear_attn_config"],
    }
    config |= {"vocab_size": shape.vocab, "dtype": "bfloat16", **media_ids(shape)}
    pixels = {
        "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3, "image_processor_type": "Glm5NextImageProcessor",
        "min_image_tokens": 4, "max_image_tokens": 64,
    }  # fmt: skip
    eos = {"eos_token_id": eos_ids(shape), "pad_token_id": eos_ids(shape)[0]}
    files = {
        "config.json": config,
        "generation_config.json": eos | {"temperature": 1.0, "top_p": 0.95},
        "processor_config.json": {"image_processor": pixels},
    }
    for name, body in files.items():
        (folder / name).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    write_tokenizer_config(folder / "tokenizer_config.json", shape.vocab)
