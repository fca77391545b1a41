"""Random-but-valid weights with GLM-5.3-Flash's geometry, made in memory.

Speed and memory can be measured at full scale without the 125 GB checkpoint: any trellis bits
decode, so weights are random bytes, and scales keep activations of order one. The directory written
here holds real headers over a sparse file: it looks complete to any reader and takes no space;
values come from DummyValues, the same for every engine.
"""

from __future__ import annotations

import json
import math
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

MUL1_MARKER = 0x83DCD12D - (1 << 32)
DTYPES = {
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "I32": torch.int32,
}
POOL_BYTES = 256 << 20
POOL_NORMALS = 16 << 20
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "processor_config.json",
    "generation_config.json",
)


@dataclass(frozen=True, slots=True)
class DummySpec:
    """Depth and width of a dummy model; the defaults are the real model without MTP and vision."""

    layers: int = 45
    experts: int = 288
    hidden: int = 4096
    moe: int = 2048

    @classmethod
    def parse(cls, load_format: str) -> DummySpec | None:
        """ "dummy" or "dummy:layers=N,experts=N"; None for any other load format. Raises ValueError."""
        name, _, arguments = load_format.partition(":")
        if name != "dummy":
            return None
        values: dict[str, int] = {}
        for part in filter(None, arguments.split(",")):
            key, _, value = part.partition("=")
            if key not in cls.__slots__ or not value.isdigit():
                raise ValueError(
                    f"load format {load_format!r}: {part!r} is not one of {', '.join(cls.__slots__)}=N"
                )
            values[key] = int(value)
        return cls(**values)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, safetensors dtype, shape and how its values are made: (kind, number)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str  # bits | marker | sign | normal | const
    scale: float = 1.0


def dummy_config(spec: DummySpec) -> dict[str, object]:
    """config.json of GLM-5.3-Flash cut to the wanted depth and width."""
    linear = [i for i in range(spec.layers) if i % 4 != 3]
    sparse = [i for i in range(spec.layers) if i % 4 == 3]
    text = {
        "model_type": "glm5_next_text", "dtype": "bfloat16", "vocab_size": 154880,
        "hidden_size": spec.hidden, "intermediate_size": 3 * spec.hidden, "moe_intermediate_size": spec.moe,
        "num_hidden_layers": spec.layers, "num_attention_heads": 64, "num_key_value_heads": 64, "head_dim": 0,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 256, "qk_rope_head_dim": 0,
        "qk_head_dim": 256, "v_head_dim": 256, "n_routed_experts": spec.experts, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "first_k_dense_replace": 3, "n_group": 1, "topk_group": 1,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True,
        "routed_scaling_factor": 2.5, "hidden_act": "silu", "swiglu_limit": 10.0, "rms_norm_eps": 1e-5,
        "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048, "index_kpool": 4,
        "index_kpool_compress": True, "index_kpool_always_select_tail": True, "mhc": True, "hc_mult": 4,
        "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "max_position_embeddings": 1048576,
        "num_nextn_predict_layers": 0, "eos_token_id": [154820, 154827, 154829], "pad_token_id": 154820,
        "layer_types": ["linear_attention" if i in linear else "deepseek_sparse_attention" for i in range(spec.layers)],
        "mlp_layer_types": ["dense" if i < 3 else "sparse" for i in range(spec.layers)],
        "indexer_types": ["full"] * spec.layers,
        "linear_attn_config": {
            "num_heads": 64, "head_dim": 128, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0,
            "kda_layers": linear, "full_attn_layers": sparse,
        },
    }  # fmt: skip
    vision = {
        "model_type": "glm5_next_vision", "depth": 1, "hidden_size": 256, "num_heads": 4,
        "intermediate_size": 256, "out_hidden_size": spec.hidden, "projection_intermediate_size": 256,
        "image_size": 448, "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2,
        "in_channels": 3, "hidden_act": "silu", "attention_bias": True, "rms_norm_eps": 1e-5, "swiglu_limit": 10.0,
    }  # fmt: skip
    return {
        "architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next",
        "tie_word_embeddings": False, "image_token_id": 154854, "video_token_id": 154855,
        "image_start_token_id": 154830, "image_end_token_id": 154831, "video_start_token_id": 154832,
        "video_end_token_id": 154833, "text_config": text, "vision_config": vision,
        "quantization_config": {
            "quant_method": "exl3", "version": "1.4.4", "bits": 3.05, "head_bits": 6, "codebook": "mul1",
        },
    }  # fmt: skip


def _linear(name: str, inputs: int, outputs: int, bits: int) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.trellis", "I16", (inputs // 16, outputs // 16, 16 * bits), "bits")
    yield TensorSpec(f"{name}.suh", "F16", (inputs,), "sign")
    yield TensorSpec(f"{name}.svh", "F16", (outputs,), "sign", inputs**-0.5)
    yield TensorSpec(f"{name}.mul1", "I32", (), "marker")


def _mlp(prefix: str, hidden: int, width: int, bits: int) -> Iterator[TensorSpec]:
    yield from _linear(prefix + "gate_proj", hidden, width, bits)
    yield from _linear(prefix + "up_proj", hidden, width, bits)
    yield from _linear(prefix + "down_proj", width, hidden, bits)


def _linear_attention(a: str, hidden: int, width: int) -> Iterator[TensorSpec]:
    heads = width // 128
    yield from _linear(a + "qkv_proj", hidden, 3 * width, 5)
    yield TensorSpec(a + "conv1d.weight", "BF16", (3 * width, 1, 4), "normal", 0.5)
    yield TensorSpec(a + "b_proj.weight", "F16", (heads, hidden), "normal", hidden**-0.5)
    for gate in ("f", "g"):
        yield TensorSpec(a + f"{gate}_a_proj.weight", "F16", (128, hidden), "normal", hidden**-0.5)
        yield TensorSpec(a + f"{gate}_b_proj.weight", "F16", (width, 128), "normal", 128**-0.5)
    yield TensorSpec(a + "A_log", "F32", (heads,), "normal", 0.5)
    yield TensorSpec(a + "dt_bias", "F32", (width,), "normal", 0.5)
    yield TensorSpec(a + "o_norm.weight", "BF16", (128,), "const")
    yield from _linear(a + "o_proj", width, hidden, 5)


def _sparse_attention(a: str, c: dict[str, int]) -> Iterator[TensorSpec]:
    hidden, heads, q_rank, kv_rank = (
        c["hidden_size"], c["num_attention_heads"], c["q_lora_rank"], c["kv_lora_rank"],
    )  # fmt: skip
    value_width = heads * c["v_head_dim"]
    yield from _linear(a + "q_a_proj", hidden, q_rank, 5)
    yield TensorSpec(a + "q_a_layernorm.weight", "BF16", (q_rank,), "const")
    yield from _linear(a + "q_b_proj", q_rank, heads * c["qk_head_dim"], 5)
    yield from _linear(a + "kv_a_proj_with_mqa", hidden, kv_rank, 5)
    yield TensorSpec(a + "kv_a_layernorm.weight", "BF16", (kv_rank,), "const")
    kv_b = (heads * c["qk_nope_head_dim"] + value_width, kv_rank)
    yield TensorSpec(a + "kv_b_proj.weight", "F16", kv_b, "normal", kv_rank**-0.5)
    yield from _linear(a + "o_proj", value_width, hidden, 5)
    x, width = a + "indexer.", c["index_head_dim"]
    yield from _linear(x + "wq_b", q_rank, c["index_n_heads"] * width, 5)
    yield TensorSpec(x + "wk.weight", "F16", (width, hidden), "normal", hidden**-0.5)
    yield TensorSpec(
        x + "weights_proj.weight", "F16", (c["index_n_heads"], hidden), "normal", hidden**-0.5
    )
    yield TensorSpec(x + "k_norm.weight", "F16", (width,), "const")
    yield TensorSpec(x + "k_norm.bias", "F16", (width,), "const", 0.0)
    yield TensorSpec(
        x + "index_kpool_compress_ape", "F32", (c["index_kpool"], width), "normal", 0.1
    )
    yield TensorSpec(
        x + "index_kpool_compress_gate", "F16", (width, hidden), "normal", hidden**-0.5
    )


def dummy_tensors(config: dict[str, object]) -> Iterator[TensorSpec]:
    """Every tensor of a dummy checkpoint, in file order; bits per class follow the 3.05 bpw release."""
    c: dict = config["text_config"]  # type: ignore[assignment]
    prefix, hidden = "model.language_model.", c["hidden_size"]
    yield TensorSpec(prefix + "embed_tokens.weight", "BF16", (c["vocab_size"], hidden), "normal")
    for i in range(c["num_hidden_layers"]):
        layer = f"{prefix}layers.{i}."
        for site in ("attn", "ffn"):
            yield TensorSpec(layer + f"hc_{site}_fn", "F32", (24, 4 * hidden), "normal", 0.01)
            yield TensorSpec(layer + f"hc_{site}_base", "F32", (24,), "const", 0.0)
            yield TensorSpec(layer + f"hc_{site}_scale", "F32", (3,), "const")
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield TensorSpec(layer + norm + ".weight", "BF16", (hidden,), "const")
        if c["layer_types"][i] == "linear_attention":
            heads = c["linear_attn_config"]["num_heads"]
            yield from _linear_attention(layer + "self_attn.", hidden, heads * 128)
        else:
            yield from _sparse_attention(layer + "self_attn.", c)
        m = layer + "mlp."
        if c["mlp_layer_types"][i] == "dense":
            yield from _mlp(m, hidden, c["intermediate_size"], 4)
            continue
        experts, width = c["n_routed_experts"], c["moe_intermediate_size"]
        yield TensorSpec(m + "gate.weight", "F16", (experts, hidden), "normal", hidden**-0.5)
        yield TensorSpec(m + "gate.e_score_correction_bias", "F32", (experts,), "normal", 0.05)
        for e in range(experts):
            yield from _mlp(f"{m}experts.{e}.", hidden, width, 3)
        yield from _mlp(m + "shared_experts.", hidden, width, 5)
    yield TensorSpec(prefix + "norm.weight", "BF16", (hidden,), "const")
    yield from _linear("lm_head", hidden, c["vocab_size"], 6)


def write_directory(spec: DummySpec, into: Path, tokenizer_from: Path) -> dict[str, TensorSpec]:
    """Write config, tokenizer files and a sparse safetensors file; returns the tensors by name."""
    into.mkdir(parents=True, exist_ok=True)
    config = dummy_config(spec)
    (into / "config.json").write_text(json.dumps(config, indent=1))
    for name in TOKENIZER_FILES:
        shutil.copy(tokenizer_from / name, into / name)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    tensors = {t.name: t for t in dummy_tensors(config)}
    for t in tensors.values():
        size = math.prod(t.shape) * DTYPES[t.dtype].itemsize
        header[t.name] = {
            "dtype": t.dtype,
            "shape": list(t.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with (into / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + offset)
    return tensors


class DummyValues:
    """Values of dummy tensors, deterministic by name, cut from two pools of random numbers."""

    def __init__(self, tensors: dict[str, TensorSpec]) -> None:
        self.tensors = tensors
        generator = torch.Generator().manual_seed(0)
        self._bytes = torch.randint(0, 2**63 - 1, (POOL_BYTES // 8,), generator=generator).view(
            torch.uint8
        )
        self._normals = torch.randn(POOL_NORMALS, generator=generator)

    def trellis_bytes(self, name: str, size: int) -> torch.Tensor:
        """uint8 [size] of one trellis: a window of the byte pool, or the pool repeated."""
        if size >= POOL_BYTES:
            return self._bytes.repeat(-(-size // POOL_BYTES))[:size]
        start = zlib.crc32(name.encode()) % (POOL_BYTES - size) & ~15
        return self._bytes[start : start + size]

    def _normal(self, name: str, count: int) -> torch.Tensor:
        if count >= POOL_NORMALS:
            return self._normals.repeat(-(-count // POOL_NORMALS))[:count]
        start = zlib.crc32(name.encode()) % (POOL_NORMALS - count)
        return self._normals[start : start + count]

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor of that name on the CPU, in its file dtype and shape."""
        spec = self.tensors[name]
        dtype = DTYPES[spec.dtype]
        count = math.prod(spec.shape)
        if spec.kind == "bits":
            return self.trellis_bytes(name, count * dtype.itemsize).view(dtype).view(spec.shape)
        if spec.kind == "marker":
            return torch.tensor(MUL1_MARKER, dtype=dtype)
        if spec.kind == "const":
            return torch.full(spec.shape, spec.scale, dtype=dtype)
        values = self._normal(name, count)
        if spec.kind == "sign":
            values = values.sign().masked_fill_(values == 0, 1.0)
        return (values * spec.scale).to(dtype).view(spec.shape)
