"""Filling memory piece by piece: the bytes, their order, and where a file falls short."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from glm53_kernels import BadArgument, FileEnded, Filler, Piece

SIZE = 1 << 16


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "weights"
    path.write_bytes(random.Random(1).randbytes(SIZE))
    number = os.open(path, os.O_RDONLY)
    yield number
    os.close(number)


def test_every_byte_and_no_other(file: int) -> None:
    """Random pieces from memory and file into gaps of a larger area, by several threads."""
    chance, filler = random.Random(2), Filler()
    content = np.frombuffer(os.pread(file, SIZE, 0), np.uint8)
    for _ in range(20):
        area, wanted = np.full(3 * SIZE, 7, np.uint8), np.full(3 * SIZE, 7, np.uint8)
        pieces: list[Piece] = []
        at = 0
        while (size := chance.choice([0, 1, 15, 4096, chance.randrange(9000)])) + at < 3 * SIZE:
            first = chance.randrange(SIZE - size)
            from_memory = chance.random() < 0.5
            pieces.append(
                Piece(address(area) + at, size, address(content) + first)
                if from_memory
                else Piece(address(area) + at, size, file=file, offset=first)
            )
            wanted[at : at + size] = content[first : first + size]
            at += size + chance.randrange(30)
        chance.shuffle(pieces)
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(filler.fill, (pieces[i::3] for i in range(3))))
        assert (area == wanted).all()


def test_the_first_piece_that_the_file_does_not_give_is_told(file: int) -> None:
    area = np.zeros(64, np.uint8)
    pieces = [
        Piece(address(area), 16, file=file, offset=0),
        Piece(address(area) + 16, 0, file=file, offset=0),
        Piece(address(area) + 16, 16, file=file, offset=SIZE - 5),
        Piece(address(area) + 32, 16, file=file, offset=0),
    ]
    with pytest.raises(FileEnded) as caught:
        Filler().fill(pieces)
    assert (caught.value.piece, caught.value.got, caught.value.errno) == (2, 5, 0)
    assert area[16:21].tobytes() == os.pread(file, 5, SIZE - 5)
    assert not area[21:].any(), "what comes after it is not written"


def test_nothing_is_nothing_and_nowhere_is_refused(file: int) -> None:
    Filler().fill([])
    with pytest.raises(BadArgument, match="goes nowhere"):
        Filler().fill([Piece(0, 1, file=file)])
