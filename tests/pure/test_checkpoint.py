"""glm53ctl.checkpoint: what it reads from a good directory and what it says about bad ones."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from glm53ctl.checkpoint import FLASH, facts, open_checkpoint, read_header
from glm53ctl.errors import BadModel

TINY = Path(__file__).parents[2] / "reference" / "tiny"


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint that a test may damage."""
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def safetensors(header: object, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def tensor(begin: int, end: int, shape: list[int], dtype: str = "F16") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def refused(path: Path) -> BadModel:
    with pytest.raises(BadModel) as caught:
        open_checkpoint(path)
    assert caught.value.exit_code == 7
    return caught.value


def test_tiny_facts() -> None:
    checkpoint = open_checkpoint(TINY)
    found = facts(checkpoint)
    assert (found.layers, found.moe_layers, found.experts, found.experts_per_token) == (6, 5, 32, 8)
    assert (found.hidden, found.moe_intermediate, found.vocab_size) == (256, 128, 4096)
    assert found.expert_bytes == 3 * 256 * 128 * 3 // 8
    assert found.expert_total_bytes == 5 * 32 * found.expert_bytes
    total_bytes = sum(entry.nbytes for entry in checkpoint.tensors.values())
    assert found.resident_bytes + found.expert_total_bytes == total_bytes
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    ends = ("<|endoftext|>", "<|user|>", "<|observation|>")
    assert found.eos_ids == tuple(map(tokenizer.token_to_id, ends))
    assert found.context_tokens == 65536
    assert found.name == "tiny"


def test_tensor_entries_point_at_the_bytes() -> None:
    entry = open_checkpoint(TINY).tensor("lm_head.mul1")
    assert (entry.dtype, entry.shape, entry.nbytes) == ("I32", (), 4)
    with entry.file.open("rb") as stream:
        stream.seek(entry.offset)
        assert int.from_bytes(stream.read(4), "little") == 0x83DCD12D


def test_flash_adds_up_to_the_published_size() -> None:
    """The 3.05 bpw repository's index totals 122,286,101,684 bytes, vision tower included."""
    vision_bytes, kpool_bytes = 598_055_600, 11 * (4 * 128 + 128 * 4096) * 2
    assert FLASH.expert_bytes == 3 * 4096 * 2048 * 3 // 8
    total_bytes = FLASH.resident_bytes + FLASH.expert_total_bytes
    assert total_bytes + vision_bytes - kpool_bytes == 122_286_101_684


def test_vision_and_prediction_layers_are_not_resident(model_dir: Path) -> None:
    before = facts(open_checkpoint(model_dir)).resident_bytes
    names = ["model.visual.x", "model.language_model.layers.6.mlp.experts.0.up_proj.trellis"]
    header = {name: tensor(4 * i, 4 * i + 4, [2]) for i, name in enumerate(names)}
    (model_dir / "mtp.safetensors").write_bytes(safetensors(header, bytes(8)))
    after = facts(open_checkpoint(model_dir))
    assert after.resident_bytes == before
    assert after.moe_layers == 5


def test_not_a_directory(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "gone").message
    file = tmp_path / "file"
    file.touch()
    assert "is not a directory" in refused(file).message


def test_empty_directory(tmp_path: Path) -> None:
    error = refused(tmp_path)
    assert f"{tmp_path / 'config.json'} is missing" in error.message
    assert error.hint


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "processor_config.json"])
def test_missing_and_broken_files_are_named(model_dir: Path, name: str) -> None:
    (model_dir / name).unlink()
    error = refused(model_dir)
    assert f"{name} is missing" in error.message
    assert error.hint
    (model_dir / name).write_text("{")
    assert f"{name} is not JSON" in refused(model_dir).message
    (model_dir / name).write_text("[" * 100_000)
    assert f"{name} is not JSON" in refused(model_dir).message
    (model_dir / name).write_bytes(b"\xff")
    assert f"{name} is not JSON" in refused(model_dir).message
    (model_dir / name).write_text("[]")
    assert f"{name} is not a JSON object" in refused(model_dir).message


def test_no_weights(model_dir: Path) -> None:
    (model_dir / "model.safetensors").unlink()
    assert "no *.safetensors file" in refused(model_dir).message


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"architectures": None}, "None"),
        ({"text_config": None}, "text_config"),
        ({"text_config": {"num_hidden_layers": "six"}}, "num_hidden_layers"),
        ({"text_config": {"num_hidden_layers": 2, "mlp_layer_types": []}}, "mlp_layer_types"),
    ],
)
def test_wrong_config(model_dir: Path, change: dict[str, object], says: str) -> None:
    file = model_dir / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    error = refused(model_dir)
    assert says in error.message
    assert "config.json" in error.message


def test_processor_config_without_image_processor(model_dir: Path) -> None:
    (model_dir / "processor_config.json").write_text("{}")
    assert "image_processor" in refused(model_dir).message


@pytest.mark.parametrize("kept_bytes", [0, 7, 8, 1000, 300_000, 16_677_317])
def test_truncated_weights(model_dir: Path, kept_bytes: int) -> None:
    file = model_dir / "model.safetensors"
    with file.open("r+b") as stream:
        stream.truncate(kept_bytes)
    error = refused(model_dir)
    assert str(file) in error.message
    assert "truncated" in error.message
    assert error.hint


def test_bytes_after_the_last_tensor(model_dir: Path) -> None:
    with (model_dir / "model.safetensors").open("ab") as stream:
        stream.write(b"x")
    assert "too long" in refused(model_dir).message


def test_git_lfs_pointer(model_dir: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 16677318\n"
    (model_dir / "model.safetensors").write_bytes(pointer)
    assert "Git LFS pointer" in refused(model_dir).message


@pytest.mark.parametrize(
    "header",
    [
        b"\xff\xfe garbage",
        b"[]",
        b"[" * 100_000,
        b'{"t": {"dtype": "F16", "shape": [Infinity], "data_offsets": [0, 4]}}',
        b'{"t": {"dtype": "F16", "shape": [2], "data_offsets": [0, 1e400]}}',
        b'{"t": {"dtype": "F16", "shape": [NaN], "data_offsets": [0, 4]}}',
        {"t": []},
        {"t": {"dtype": "F16", "shape": [2]}},
        {"t": tensor(0, 4, [2], "Q9")},
        {"t": tensor(0, 4, [3])},
        {"t": tensor(-4, 0, [2])},
        {"t": tensor(0, 4, [-1, -2])},
        {"t": {"dtype": "F16", "shape": "ab", "data_offsets": [0, 4]}},
        {"a": tensor(0, 4, [2]), "b": tensor(2, 6, [2])},
        {"a": tensor(0, 4, [2]), "b": tensor(8, 12, [2])},
        {"a": tensor(0, 400, [200])},
    ],
)
def test_damaged_header(tmp_path: Path, header: object) -> None:
    file = tmp_path / "damaged.safetensors"
    file.write_bytes(safetensors(header, bytes(6)))
    with pytest.raises(BadModel, match=r"damaged\.safetensors") as caught:
        read_header(file)
    assert caught.value.hint


_HEADER = safetensors({"a": tensor(0, 4, [2]), "b": tensor(4, 8, [1], "F32")}, bytes(8))


@given(
    st.lists(
        st.tuples(st.integers(0, len(_HEADER) - 1), st.integers(0, 255)), min_size=1, max_size=6
    ),
    st.integers(0, len(_HEADER)),
)
def test_no_mutation_of_a_file_raises_anything_but_bad_model(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], cut: int
) -> None:
    raw = bytearray(_HEADER)
    for position, value in changes:
        raw[position] = value
    file = tmp_path_factory.getbasetemp() / "mutated.safetensors"
    for content in (raw, raw[:cut]):
        file.write_bytes(content)
        with suppress(BadModel):
            entries = read_header(file)
            assert sum(entry.nbytes for entry in entries) < len(content)


def test_header_longer_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "long.safetensors"
    file.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    with pytest.raises(BadModel, match="truncated or not a safetensors file"):
        read_header(file)


def test_same_tensor_in_two_files(model_dir: Path) -> None:
    extra = safetensors({"lm_head.mul1": tensor(0, 4, [2])}, bytes(4))
    (model_dir / "another.safetensors").write_bytes(extra)
    assert "lm_head.mul1 is also in" in refused(model_dir).message


def test_missing_shard(model_dir: Path) -> None:
    """A download that lacks a shard has every file intact, yet lacks tensors."""
    file = model_dir / "config.json"
    config = json.loads(file.read_text())
    config["text_config"]["n_routed_experts"] = 33
    file.write_text(json.dumps(config))
    assert "layers.1.mlp.experts.32.gate_proj.trellis" in refused(model_dir).message


def test_unquantised_model(model_dir: Path) -> None:
    (model_dir / "model.safetensors").write_bytes(
        safetensors({"lm_head.weight": tensor(0, 4, [2])}, bytes(4))
    )
    assert "not quantised with EXL3" in refused(model_dir).message
