"""What is in a checkpoint directory: its configuration, its tensors, and the sizes a plan needs.

Reads JSON files and safetensors headers only, never tensor data. Everything that can be wrong with a
directory is found here, before anything is loaded, and named by file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, cast

from glm53ctl.errors import BadModel

ARCHITECTURE = "Glm5NextForConditionalGeneration"
TEXT_PREFIX = "model.language_model."
DTYPE_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F64", "I64", "U64"), 8),
}
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_NO_HEADER = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
_LAYER = re.compile(r"model\.language_model\.layers\.(\d+)\.")
_EXPERT_TRELLIS = re.compile(
    r"model\.language_model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(?:gate|up|down)_proj\.trellis"
)
_DOWNLOAD_AGAIN = "the file is incomplete or damaged: download the model again"
_NOT_A_MODEL = "give the directory of a GLM-5.3-Flash EXL3 checkpoint, or `tiny`"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies: `offset` is absolute in `file`, `dtype` is safetensors' name ("F16")."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint directory. `tensors` spans all its *.safetensors files; an index is ignored."""

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]

    @cached_property
    def text_config(self) -> Mapping[str, Any]:
        """The language model's part of config.json."""
        return cast("Mapping[str, Any]", self.config["text_config"])

    def tensor(self, name: str) -> TensorEntry:
        """The entry of `name`. Raises BadModel when the checkpoint lacks it."""
        try:
            return self.tensors[name]
        except KeyError:
            raise BadModel(f"{self.path}: no tensor {name}", hint=_DOWNLOAD_AGAIN) from None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The sizes of a model.

    `expert_bytes` is the trellis of one routed expert, `expert_total_bytes` of all of them.
    `resident_bytes` is every other tensor of the language model: not the vision tower, and not the
    multi-token-prediction layer. `context_tokens` is what the model was made for.
    """

    name: str
    layers: int
    moe_layers: int
    experts: int
    experts_per_token: int
    hidden: int
    moe_intermediate: int
    expert_bytes: int
    expert_total_bytes: int
    resident_bytes: int
    context_tokens: int
    vocab_size: int
    eos_ids: tuple[int, ...]


FLASH = ModelFacts(
    name="glm-5.3-flash",
    layers=45,
    moe_layers=42,
    experts=288,
    experts_per_token=8,
    hidden=4096,
    moe_intermediate=2048,
    expert_bytes=9_437_184,
    expert_total_bytes=42 * 288 * 9_437_184,
    resident_bytes=7_547_414_020,
    context_tokens=1_048_576,
    vocab_size=154_880,
    eos_ids=(154_820, 154_827, 154_829),
)


def open_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint's config and safetensors headers. Raises BadModel naming the file at fault."""
    try:
        missing = not path.is_dir() and (
            "is not a directory" if path.exists() else "does not exist"
        )
    except OSError as err:  # above all: a folder above it may not be entered
        raise BadModel(f"cannot read {path}: {err.strerror}", hint=_NOT_A_MODEL) from err
    if missing:
        raise BadModel(f"{path} {missing}", hint=_NOT_A_MODEL)
    config = _read_config(path / "config.json")
    _read_json(path / "tokenizer.json", hint=_DOWNLOAD_AGAIN)
    processor = _read_json(
        path / "processor_config.json",
        hint="exllamav3 needs it even for text; copy it from the model's repository",
    )
    if not isinstance(processor.get("image_processor"), dict):
        raise BadModel(f'{path / "processor_config.json"}: no "image_processor" object')
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise BadModel(f"{path} has no *.safetensors file", hint=_NOT_A_MODEL)
    tensors: dict[str, TensorEntry] = {}
    for file in files:
        for entry in read_header(file):
            if entry.name in tensors:
                other = tensors[entry.name].file.name
                raise BadModel(f"{file}: tensor {entry.name} is also in {other}")
            tensors[entry.name] = entry
    checkpoint = Checkpoint(path, config, tensors)
    _check_complete(checkpoint)
    return checkpoint


def facts(checkpoint: Checkpoint) -> ModelFacts:
    """The sizes a plan needs. Raises BadModel when config.json lacks one."""
    layers = _int(checkpoint, "num_hidden_layers")
    experts: dict[tuple[str, str], int] = {}
    resident_bytes = 0
    for entry in checkpoint.tensors.values():
        if found := _EXPERT_TRELLIS.fullmatch(entry.name):
            if int(found[1]) < layers:
                key = (found[1], found[2])
                experts[key] = experts.get(key, 0) + entry.nbytes
        elif _is_text(entry.name, layers):
            resident_bytes += entry.nbytes
    return ModelFacts(
        name=checkpoint.path.resolve().name,
        layers=layers,
        moe_layers=len({layer for layer, _ in experts}),
        experts=_int(checkpoint, "n_routed_experts"),
        experts_per_token=_int(checkpoint, "num_experts_per_tok"),
        hidden=_int(checkpoint, "hidden_size"),
        moe_intermediate=_int(checkpoint, "moe_intermediate_size"),
        expert_bytes=max(experts.values()),
        expert_total_bytes=sum(experts.values()),
        resident_bytes=resident_bytes,
        context_tokens=_int(checkpoint, "max_position_embeddings"),
        vocab_size=_int(checkpoint, "vocab_size"),
        eos_ids=_eos_ids(checkpoint),
    )


def read_header(file: Path) -> list[TensorEntry]:
    """The tensors of one safetensors file, in file order. Raises BadModel when it is damaged."""
    try:
        size_bytes = file.stat().st_size
        with file.open("rb") as stream:
            header_bytes = int.from_bytes(stream.read(8), "little")
            if size_bytes < 8 or header_bytes > min(size_bytes - 8, _MAX_HEADER_BYTES):
                raise BadModel(_header_problem(file, size_bytes), hint=_DOWNLOAD_AGAIN)
            raw = stream.read(header_bytes)
    except OSError as err:
        raise BadModel(f"cannot read {file}: {err.strerror}") from err
    try:
        header = json.loads(raw)
        header.pop("__metadata__", None)
        data_start = 8 + header_bytes
        entries = [_entry(file, name, info, data_start) for name, info in header.items()]
    except _NO_HEADER as err:
        raise BadModel(f"{file}: not a safetensors header: {err}", hint=_DOWNLOAD_AGAIN) from err
    entries.sort(key=lambda entry: entry.offset)
    _check_layout(file, entries, data_start, size_bytes)
    return entries


def _header_problem(file: Path, size_bytes: int) -> str:
    with file.open("rb") as stream:
        if stream.read(12) == b"version http":
            return f"{file} is a Git LFS pointer, not the file itself"
    return f"{file}: truncated or not a safetensors file ({size_bytes} bytes)"


def _entry(file: Path, name: str, info: Mapping[str, Any], data_start: int) -> TensorEntry:
    shape = tuple(int(size) for size in info["shape"])
    begin, end = (int(offset) for offset in info["data_offsets"])
    nbytes = prod(shape) * DTYPE_BYTES[info["dtype"]]
    if begin < 0 or min(shape, default=0) < 0 or end - begin != nbytes:
        raise ValueError(f"{name} has {end - begin} bytes, its shape needs {nbytes}")
    return TensorEntry(name, info["dtype"], shape, file, data_start + begin, nbytes)


def _check_layout(file: Path, entries: list[TensorEntry], data_start: int, size_bytes: int) -> None:
    position = data_start
    for entry in entries:
        if entry.offset != position:
            raise BadModel(
                f"{file}: tensor {entry.name} starts at byte {entry.offset}, expected {position}",
                hint=_DOWNLOAD_AGAIN,
            )
        position += entry.nbytes
    if position != size_bytes:
        state = "truncated" if size_bytes < position else "too long"
        raise BadModel(
            f"{file} is {state}: {size_bytes} bytes, its header describes {position}",
            hint=_DOWNLOAD_AGAIN,
        )


def _read_json(file: Path, *, hint: str) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadModel(f"{file} is missing", hint=hint) from None
    except OSError as err:
        raise BadModel(f"cannot read {file}: {err.strerror}") from err
    except (ValueError, RecursionError) as err:
        raise BadModel(f"{file} is not JSON: {err}", hint=hint) from err
    if not isinstance(found, dict):
        raise BadModel(f"{file} is not a JSON object", hint=hint)
    return cast("dict[str, Any]", found)


def _read_config(file: Path) -> dict[str, Any]:
    config = _read_json(file, hint=_NOT_A_MODEL)
    if config.get("architectures") != [ARCHITECTURE]:
        raise BadModel(
            f"{file}: architectures is {config.get('architectures')!r}, "
            f"this project serves only {ARCHITECTURE}",
            hint=_NOT_A_MODEL,
        )
    if not isinstance(config.get("text_config"), dict):
        raise BadModel(f'{file}: no "text_config" object', hint=_NOT_A_MODEL)
    return config


def _check_complete(checkpoint: Checkpoint) -> None:
    """Find a missing shard from the tensors that every layer must have."""
    if not any(name.endswith(".trellis") for name in checkpoint.tensors):
        raise BadModel(f"{checkpoint.path} is not quantised with EXL3", hint=_NOT_A_MODEL)
    for name in _expected_tensors(checkpoint):
        checkpoint.tensor(name)


def _expected_tensors(checkpoint: Checkpoint) -> Iterable[str]:
    yield f"{TEXT_PREFIX}embed_tokens.weight"
    yield f"{TEXT_PREFIX}norm.weight"
    yield "lm_head.trellis"
    kinds = checkpoint.text_config.get("mlp_layer_types")
    layers = _int(checkpoint, "num_hidden_layers")
    if not isinstance(kinds, list) or len(cast("list[str]", kinds)) != layers:
        raise BadModel(
            f"{checkpoint.path / 'config.json'}: mlp_layer_types does not list {layers} layers"
        )
    for layer, kind in enumerate(cast("list[str]", kinds)):
        prefix = f"{TEXT_PREFIX}layers.{layer}."
        yield f"{prefix}input_layernorm.weight"
        if kind == "sparse":
            for expert in range(_int(checkpoint, "n_routed_experts")):
                for projection in ("gate_proj", "up_proj", "down_proj"):
                    yield f"{prefix}mlp.experts.{expert}.{projection}.trellis"


def _is_text(name: str, layers: int) -> bool:
    if found := _LAYER.match(name):
        return int(found[1]) < layers  # the layer after the last one predicts further tokens
    return name.startswith((TEXT_PREFIX, "lm_head."))


def _int(checkpoint: Checkpoint, key: str) -> int:
    value = checkpoint.text_config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadModel(f"{checkpoint.path / 'config.json'}: text_config.{key} is {value!r}")
    return value


def _eos_ids(checkpoint: Checkpoint) -> tuple[int, ...]:
    found = checkpoint.text_config.get("eos_token_id")
    ids = cast("list[object]", found) if isinstance(found, list) else [found]
    if not ids or not all(isinstance(token, int) for token in ids):
        raise BadModel(f"{checkpoint.path / 'config.json'}: eos_token_id is {found!r}")
    return tuple(cast("list[int]", ids))
