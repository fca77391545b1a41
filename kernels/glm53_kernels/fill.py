"""Filling memory from memory and files in libglm53_cpu.so: many pieces at a call, without the interpreter."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from . import _abi
from ._load import load
from .sources import CPU


@dataclass(frozen=True, slots=True)
class Piece:
    """`size` bytes for the address `to`: from the address `source`, or, where that is 0, from the open file
    `file` at `offset`. The caller keeps all of that alive.
    """

    to: int
    size: int
    source: int = 0
    file: int = -1
    offset: int = 0


class FileEnded(OSError):
    """A file gave `got` bytes of piece number `piece`; errno is 0 when it just ended."""

    def __init__(self, piece: int, got: int, error: int) -> None:
        super().__init__(error, f"piece {piece}: {got} bytes")
        self.piece, self.got = piece, got


class Filler:
    """Calls may come from many threads at once. Raises what loading the library raises."""

    def __init__(self) -> None:
        self._library = load(CPU)

    def fill(self, pieces: Sequence[Piece]) -> None:
        """Write all pieces in order. Raises FileEnded for the first that a file does not give whole."""
        listed = (_abi.Piece * len(pieces))(
            *((one.to, one.source or None, one.size, one.offset, one.file, 0) for one in pieces)
        )
        written, error = ctypes.c_uint64(), ctypes.c_int32()
        self._library.call(
            "glm53_cpu_fill", listed, len(pieces), ctypes.byref(written), ctypes.byref(error)
        )
        left = written.value
        for number, one in enumerate(pieces):
            if left < one.size:
                raise FileEnded(number, left, error.value)
            left -= one.size
