"""The pieces under the CPU engine: attention in latent space, names and shapes of weights."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from cpu_driver import REFERENCE
from transformers import DynamicCache
from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextAttention

from glm53_kernels import CpuKernels
from glm53_server.engine.cpu_attention import LatentAttention
from glm53_server.engine.cpu_model import load_model
from glm53_server.engine.cpu_weights import Weights, text_tensor
from glm53ctl.checkpoint import open_checkpoint, read_header
from glm53ctl.errors import BadModel

TINY = REFERENCE / "tiny"
LAYER = "model.language_model.layers.0.self_attn."


@pytest.fixture(scope="module")
def kernels() -> CpuKernels:
    return CpuKernels(threads=1)


@torch.inference_mode()
def test_latent_attention_equals_transformers_where_attention_is_sparse() -> None:
    """Chunks and single tokens, from a context that fits index_topk to one three times as long."""
    settings = json.loads((TINY / "config.json").read_text())["text_config"] | {"index_topk": 64}
    config = Glm5NextTextConfig(**settings)
    torch.manual_seed(0)
    attention = Glm5NextTextAttention(config, layer_idx=3).eval()
    for parameter in attention.parameters():
        parameter.normal_(std=0.05)
    latent = LatentAttention(attention)
    caches = [DynamicCache(config=config) for _ in range(2)]
    for length in (40, 1, 1, 100, 1, 50, 1):
        hidden = torch.randn(1, length, config.hidden_size)
        mask = torch.ones(1, length, dtype=torch.bool)
        want, *_ = attention(hidden, mask, past_key_values=caches[0])
        found, *_ = latent(hidden, mask, past_key_values=caches[1])
        assert want.std() > 0.01
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
    assert caches[1].layers[3].get_seq_length() == 194


def test_attention_that_shares_an_indexer_is_refused() -> None:
    settings = json.loads((TINY / "config.json").read_text())["text_config"]
    settings["indexer_types"] = ["full"] * 3 + ["shared"] * 3
    with torch.device("meta"):
        attention = Glm5NextTextAttention(Glm5NextTextConfig(**settings), layer_idx=3)
    with pytest.raises(BadModel, match="indexer_types"):
        LatentAttention(attention)


def test_fused_projections_are_thirds_of_one_tensor(kernels: CpuKernels) -> None:
    weights = Weights(open_checkpoint(TINY), kernels)
    thirds = [text_tensor(weights, f"layers.0.self_attn.{part}_proj.weight") for part in "qkv"]
    whole = weights.linear(f"{LAYER}qkv_proj")
    assert whole.shape == (3 * 512, 256)
    assert torch.equal(torch.cat(thirds), whole)
    assert thirds[2].data_ptr() - thirds[0].data_ptr() == 2 * 512 * 256 * 4  # nothing was copied


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("layers.0.self_attn.forget_gate.f_a_proj.weight", f"{LAYER}f_a_proj.weight"),
        ("layers.0.self_attn.forget_gate.A_log", f"{LAYER}A_log"),
        ("layers.0.self_attn.conv1d.weight", f"{LAYER}conv1d.weight"),
        ("layers.0.attn_hc.base", "model.language_model.layers.0.hc_attn_base"),
        ("layers.0.ffn_hc.fn", "model.language_model.layers.0.hc_ffn_fn"),
    ],
)
def test_names(kernels: CpuKernels, target: str, name: str) -> None:
    weights = Weights(open_checkpoint(TINY), kernels)
    found = text_tensor(weights, target)
    assert found.dtype is torch.float32
    assert torch.equal(found, weights.raw(name).float())


def test_every_byte_of_the_text_model_is_read_once(kernels: CpuKernels) -> None:
    seen: list[tuple[str, int, int]] = []
    checkpoint = open_checkpoint(TINY)
    load_model(checkpoint, kernels, lambda *progress: seen.append(progress))
    assert seen[-1][1] == sum(entry.nbytes for entry in checkpoint.tensors.values())
    assert seen[-2][1] < seen[-1][1]  # the head comes last


def renamed(tmp_path: Path, old: str, new: str) -> Path:
    """A copy of the tiny checkpoint with one tensor under another name of the same length."""
    assert len(old) == len(new)
    path = Path(shutil.copytree(TINY, tmp_path / "model"))
    file = path / "model.safetensors"
    data = file.read_bytes()
    assert data.count(f'"{old}"'.encode()) == 1
    file.write_bytes(data.replace(f'"{old}"'.encode(), f'"{new}"'.encode()))
    assert new in {entry.name for entry in read_header(file)}
    return path


@pytest.mark.parametrize(
    "name",
    [
        "model.language_model.layers.3.self_attn.indexer.index_kpool_compress_ape",
        "model.language_model.layers.2.self_attn.o_proj.svh",
        "model.language_model.layers.4.mlp.experts.7.up_proj.mul1",
        "model.language_model.layers.1.mlp.gate.e_score_correction_bias",
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, kernels: CpuKernels, name: str) -> None:
    path = renamed(tmp_path, name, "x" * len(name))
    with pytest.raises(BadModel) as caught:
        load_model(open_checkpoint(path), kernels, lambda *_: None)
    module = name.rpartition(".")[0] if name.endswith("mul1") else name
    assert module in caught.value.message


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("intermediate_size", 640, "mlp.gate_proj.weight has shape"),
        ("vocab_size", 5000, "embed_tokens.weight has shape"),
        ("vocab_size", 4000, "[Pp]adding_idx"),
        ("index_topk", 2047, "index_topk"),
        ("hidden_size", "wide", "hidden_size"),
    ],
)
def test_config_that_does_not_match_is_named(
    tmp_path: Path, kernels: CpuKernels, key: str, value: object, says: str
) -> None:
    path = Path(shutil.copytree(TINY, tmp_path / "model"))
    config = json.loads((path / "config.json").read_text())
    config["text_config"][key] = value
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadModel, match=says):
        load_model(open_checkpoint(path), kernels, lambda *_: None)
