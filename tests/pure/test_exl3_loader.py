"""The stand-in for exllamav3's tensor loader: which keys it serves, and with which bytes."""

from __future__ import annotations

import errno
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glm53_kernels import Filler, Piece
from glm53_server.engine.exl3_contract import UnsupportedExllamav3
from glm53_server.engine.exl3_dummy import TensorSpec
from glm53_server.engine.exl3_loader import ExpertLoader
from glm53_server.moe.arena import ExpertArena
from glm53ctl.checkpoint import open_checkpoint

TINY = Path(__file__).resolve().parents[2] / "reference" / "tiny"
CHECKPOINT = open_checkpoint(TINY)


class Stc:
    """What ExpertLoader reads of exllamav3's SafetensorsCollection, over the tiny checkpoint."""

    def __init__(self, without: str = "-") -> None:
        path = TINY / "model.safetensors"
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(size))
        header.pop("__metadata__", None)
        self.file_headers = {str(path): header | {"_header_offset": 8 + size}}
        self.tensor_file_map = {key: str(path) for key in header if without not in key}
        self.asked: list[tuple[Any, ...]] = []

    def get_tensor(self, key: str, device: Any = None, *args: Any, **kwargs: Any) -> str:
        self.asked.append((key, device, args, kwargs))
        return f"stock's {key}"

    def get_tensor_size(self, key: str) -> int:
        return CHECKPOINT.tensors[key].nbytes


def loader_of(stc: Stc, dummy: Any = None, layers: int = 99) -> ExpertLoader:
    return ExpertLoader(SimpleNamespace(stc=stc, num_hidden_layers=layers), dummy, "cuda:0")


def pinned(loader: ExpertLoader) -> ExpertArena:
    driver: Any = SimpleNamespace(
        host_register=lambda address, size: address, host_unregister=lambda address: None
    )
    arena = ExpertArena(loader.layout(), driver, threads=2)
    loader.use_arena(arena)
    return arena


def raw(key: str) -> bytes:
    entry = CHECKPOINT.tensors[key]
    with entry.file.open("rb") as file:
        file.seek(entry.offset)
        return file.read(entry.nbytes)


def test_the_layout_is_the_checkpoints() -> None:
    loader = loader_of(Stc())
    layout = loader.layout()
    assert layout.layers == len(loader.layers)
    assert layout.record_bytes == 36864
    assert len(loader.keys) == 3 * layout.layers * layout.experts


def test_layers_behind_the_last_one_are_not_ours() -> None:
    """Such keys belong to the MTP head, which the text model does not load."""
    every = loader_of(Stc())
    fewer = loader_of(Stc(), layers=max(every.layers))
    assert fewer.layers == every.layers[:-1]


@pytest.mark.parametrize("missing", ["experts.3.up_proj", "up_proj", ".experts."])
def test_missing_experts_are_refused(missing: str) -> None:
    with pytest.raises(UnsupportedExllamav3, match="are missing"):
        loader_of(Stc(without=missing)).layout()


def test_the_arena_gets_the_files_bytes() -> None:
    loader = loader_of(Stc())
    arena = pinned(loader)
    arena.start_filling(loader.filler(), lambda done, total: None)
    for row in range(arena.layout.layers):
        arena.wait_layer(row)
    for (layer, expert, part), key in loader.keys.items():
        view = arena.part_view(loader.layers.index(layer), expert, part)
        assert view.numpy().tobytes() == raw(key), key
    arena.close()


def test_only_expert_trellises_for_the_gpu_are_ours() -> None:
    stc = Stc()
    loader = loader_of(stc)
    key = next(iter(loader.keys.values()))
    assert loader.get_tensor(key, "cuda:0") == f"stock's {key}", "before there is an arena"
    pinned(loader)
    stc.asked.clear()
    norm = "model.language_model.norm.weight"
    assert loader.get_tensor(norm, "cuda:0", True, float2half=True) == f"stock's {norm}"
    assert loader.get_tensor(key, "cpu") == f"stock's {key}"
    assert loader.get_tensor(key) == f"stock's {key}"
    assert stc.asked == [
        (norm, "cuda:0", (True,), {"float2half": True}), (key, "cpu", (), {}), (key, None, (), {}),
    ]  # fmt: skip


class Dummy:
    """Values by name; `value` is what tensor() answers."""

    def __init__(self, **values: torch.Tensor) -> None:
        self.values = values
        self.tensors = {name: TensorSpec(name, "F32", (1,), "const") for name in values}

    def tensor(self, name: str) -> torch.Tensor:
        return self.values[name]

    def trellis_bytes(self, name: str, size: int) -> torch.Tensor:
        return torch.full((size,), len(name) % 251, dtype=torch.uint8)


MATRIX = torch.arange(6.0).view(2, 3)


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        (MATRIX.bfloat16(), {}, MATRIX.half()),
        (MATRIX.bfloat16(), {"allow_bf16": True}, MATRIX.bfloat16()),
        (MATRIX, {}, MATRIX),
        (MATRIX, {"float2half": True}, MATRIX.half()),
        (MATRIX, {"transpose": True}, MATRIX.T.contiguous()),
        (torch.tensor(3), {"transpose": True}, torch.tensor(3)),
        (MATRIX, {"pad_to": (4, 3)}, torch.cat([MATRIX, torch.zeros(2, 3)])),
        (MATRIX, {"pad_to": (2, 3)}, MATRIX),
    ],
)
def test_dummy_values_are_shaped_as_the_stock_loader_would(
    source: torch.Tensor, options: dict[str, Any], expected: torch.Tensor
) -> None:
    loader = loader_of(Stc(), Dummy(w=source))
    found = loader.get_tensor("w", "cpu", **options)
    assert found is not None
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)
    assert found.is_contiguous()
    assert found.data_ptr() != source.data_ptr(), "a write would reach the pool"


def test_a_slice_of_a_dummy_tensor_is_refused() -> None:
    with pytest.raises(UnsupportedExllamav3, match="batched tensor w"):
        loader_of(Stc(), Dummy(w=MATRIX)).get_tensor("w", "cpu", fidx=1)


def test_dummy_experts_fill_the_arena() -> None:
    loader = loader_of(Stc(), Dummy())
    arena = pinned(loader)
    with ThreadPoolExecutor(2) as pool:
        loader.filler()(0, arena.layer_view(0), pool)
    key = loader.keys[loader.layers[0], 2, 1]
    assert (arena.part_view(0, 2, 1) == len(key) % 251).all()


def test_a_short_file_is_named(tmp_path: Path) -> None:
    stc = Stc()
    ours = loader_of(stc).keys.values()
    end = max(CHECKPOINT.tensors[key].offset + CHECKPOINT.tensors[key].nbytes for key in ours)
    (name,) = set(stc.tensor_file_map.values())
    short = tmp_path / "short.safetensors"
    short.write_bytes(Path(name).read_bytes()[: end - 3])
    stc.file_headers[str(short)] = stc.file_headers.pop(name)
    stc.tensor_file_map = dict.fromkeys(stc.tensor_file_map, str(short))
    loader = loader_of(stc)
    arena = pinned(loader)
    arena.start_filling(loader.filler(), lambda done, total: None)
    with pytest.raises(OSError, match=rf"short\.safetensors: ends at byte {end - 3}, {end} needed"):
        arena.wait_layer(arena.layout.layers - 1)
    arena.close()


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    with (tmp_path / "w").open("wb") as file, pytest.raises(OSError, match="piece 0") as caught:
        Filler().fill([Piece(torch.zeros(8).data_ptr(), 8, file=file.fileno())])
    assert caught.value.errno == errno.EBADF
