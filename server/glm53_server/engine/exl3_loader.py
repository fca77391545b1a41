"""Stands in for exllamav3's tensor loader: expert trellises come from the pinned arena.

Everything else is the stock loader's answer, or dummy values. Fills the arena straight from the
byte ranges of the safetensors files, so that expert weights are read once and never copied.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from glm53_kernels import FileEnded, Filler, Piece
from glm53_server.engine.exl3_contract import UnsupportedExllamav3
from glm53_server.engine.exl3_dummy import DummyValues
from glm53_server.moe.arena import ExpertArena, FillLayer, RecordLayout

EXPERT_KEY = re.compile(r"^(.+\.layers\.(\d+)\.mlp)\.experts\.(\d+)\.(gate|up|down)_proj\.trellis$")
PARTS = {"gate": 0, "up": 1, "down": 2}
PIECES = 16  # of one call: some 50 MB of a large model


def _expert_keys(config: Any) -> dict[tuple[int, int, int], str]:
    """(layer, expert, part) -> tensor key of the text model's routed experts, MTP excluded."""
    keys: dict[tuple[int, int, int], str] = {}
    for key in config.stc.tensor_file_map:
        found = EXPERT_KEY.match(key)
        if found and int(found[2]) < config.num_hidden_layers:
            keys[int(found[2]), int(found[3]), PARTS[found[4]]] = key
    return keys


class ExpertLoader:
    """Stands in for one loader object's get_tensor: experts from the arena, the rest as before."""

    def __init__(self, config: Any, dummy: DummyValues | None, device: str) -> None:
        self._stc = config.stc
        self._stock = config.stc.get_tensor
        self._dummy = dummy
        self._arena: ExpertArena | None = None
        self._filler = Filler()
        self._index = torch.device(device).index or 0
        self.keys = _expert_keys(config)
        self.layers = sorted({layer for layer, _, _ in self.keys})
        self._position = {key: where for where, key in self.keys.items()}

    def layout(self) -> RecordLayout:
        """The record layout shared by all experts. Raises UnsupportedExllamav3 when they differ."""
        sizes = {part: set() for part in range(3)}
        for (_, _, part), key in self.keys.items():
            sizes[part].add(self._stc.get_tensor_size(key))
        experts = max((expert for _, expert, _ in self.keys), default=-1) + 1
        if any(len(s) != 1 for s in sizes.values()) or len(self.keys) != 3 * experts * len(
            self.layers
        ):
            raise UnsupportedExllamav3(["experts of this checkpoint differ in size or are missing"])
        gate, up, down = (next(iter(sizes[part])) for part in range(3))
        return RecordLayout(len(self.layers), experts, gate, up, down)

    def use_arena(self, arena: ExpertArena) -> None:
        self._arena = arena

    def get_tensor(
        self, key: str, device: Any = None, *args: Any, **kwargs: Any
    ) -> torch.Tensor | None:
        """SafetensorsCollection.get_tensor's contract, with expert trellises as views of the arena."""
        where = self._position.get(key) if self._arena is not None else None
        if where is not None and device is not None and torch.device(device).type == "cuda":
            return self._arena_view(key, *where)
        if self._dummy is not None and key in self._dummy.tensors:
            return self._dummy_tensor(key, device, *args, **kwargs)
        return self._stock(key, device, *args, **kwargs)

    def _arena_view(self, key: str, layer: int, expert: int, part: int) -> torch.Tensor:
        from exllamav3.ext import exllamav3_ext as ext

        assert self._arena is not None
        row = self.layers.index(layer)
        self._arena.wait_layer(row)
        header = self._stc.file_headers[self._stc.tensor_file_map[key]][key]
        view = self._arena.part_view(row, expert, part).view(torch.int16).view(header["shape"])
        return ext.pinned_cuda_view(view, self._index)

    def _dummy_tensor(  # noqa: PLR0913 - the stock loader's own parameters
        self, key: str, device: Any = None, optional: bool = False, allow_bf16: bool = False,
        float2half: bool = False, no_defer: bool = False, transpose: bool = False,
        pad_to: tuple[int, ...] | None = None, fidx: int | None = None,
    ) -> torch.Tensor:  # fmt: skip
        del optional, no_defer
        assert self._dummy is not None
        if fidx is not None:
            raise UnsupportedExllamav3([f"dummy weights cannot serve the batched tensor {key}"])
        tensor = self._dummy.tensor(key).to(device if device is not None else "cpu")
        if (tensor.dtype == torch.bfloat16 and not allow_bf16) or (
            tensor.dtype == torch.float and float2half
        ):
            tensor = tensor.half()
        if transpose and tensor.dim():
            tensor = tensor.T
        if pad_to is not None and tuple(pad_to) != tuple(tensor.shape):
            padded = torch.zeros(pad_to, dtype=tensor.dtype, device=tensor.device)
            padded[tuple(slice(0, s) for s in tensor.shape)].copy_(tensor)
            tensor = padded
        # A tensor of its own: the pools behind dummy values must never be written through.
        return tensor.contiguous().clone()

    def filler(self) -> FillLayer:
        """The function that fills one layer of the arena, from the files or from dummy values."""
        return self._fill_dummy if self._dummy is not None else self._fill_from_files

    def _targets(self, row: int, destination: torch.Tensor) -> list[tuple[str, int, int]]:
        """(tensor key, address, bytes) of every part of a layer's records."""
        assert self._arena is not None
        layout = self._arena.layout
        sizes = (layout.gate_bytes, layout.up_bytes, layout.down_bytes)
        return [
            (
                self.keys[self.layers[row], expert, part],
                destination.data_ptr() + expert * layout.record_bytes + layout.offsets[part],
                sizes[part],
            )
            for expert in range(layout.experts)
            for part in range(3)
        ]

    def _fill_dummy(self, row: int, destination: torch.Tensor, pool: ThreadPoolExecutor) -> None:
        dummy = self._dummy
        assert dummy is not None
        targets = self._targets(row, destination)
        kept = [dummy.trellis_bytes(key, size) for key, _, size in targets]
        pieces = [
            Piece(to, size, source.data_ptr())
            for (_, to, size), source in zip(targets, kept, strict=True)
        ]
        list(pool.map(self._filler.fill, batched(pieces, PIECES)))

    def _fill_from_files(
        self, row: int, destination: torch.Tensor, pool: ThreadPoolExecutor
    ) -> None:
        targets = self._targets(row, destination)
        with ExitStack() as opened:
            files: dict[str, int] = {}
            for name in {self._stc.tensor_file_map[key] for key, _, _ in targets}:
                files[name] = opened.enter_context(Path(name).open("rb", buffering=0)).fileno()
            pieces: list[Piece] = []
            for key, to, size in targets:
                name = self._stc.tensor_file_map[key]
                header = self._stc.file_headers[name]
                offset = header["_header_offset"] + header[key]["data_offsets"][0]
                pieces.append(Piece(to, size, file=files[name], offset=offset))
            names = {file: name for name, file in files.items()}

            def read(some: Sequence[Piece]) -> None:
                try:
                    self._filler.fill(some)
                except FileEnded as err:
                    raise _named(err, some[err.piece], names) from err

            list(pool.map(read, batched(pieces, PIECES)))


def _named(err: FileEnded, piece: Piece, names: Mapping[int, str]) -> OSError:
    """The same trouble, with the file's name."""
    name = names[piece.file]
    if err.errno:
        return OSError(err.errno, os.strerror(err.errno), name)
    return OSError(
        f"{name}: ends at byte {piece.offset + err.got}, {piece.offset + piece.size} needed"
    )


def batched(pieces: Sequence[Piece], most: int) -> list[Sequence[Piece]]:
    """Runs of at most `most` pieces, in order."""
    return [pieces[start : start + most] for start in range(0, len(pieces), most)]
