"""Training batches: conversations packed into rows, made in other processes, in an order that a seed decides."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glm53_server.tokenizer import Tokenizer

from .corpus import sample
from .rendering import encode
from .samples import Split

WIDTH = 768  # of a row; longer conversations are left out, the longest seen are around 700 tokens
ALIGNED = 32  # a conversation begins at a multiple of this: the chunks of the linear attention
_GAP = 3  # positions between two: what its convolution sees of the past
_MISSES = 24  # conversations that do not fit before a batch counts as full
_AHEAD = 3  # blocks per process that are under way

Row = tuple[list[int], list[bool]]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows [rows][WIDTH], padded. `targets` is the next id where that id is learned, else -100."""

    ids: NDArray[np.int16]
    targets: NDArray[np.int16]
    conversations: NDArray[np.int16]  # which one of its row a position belongs to
    used: NDArray[np.bool_]  # False: padding

    @classmethod
    def empty(cls, rows: int, pad: int, width: int | None = None) -> Batch:
        shape = (rows, width or WIDTH)
        return cls(
            np.full(shape, pad, np.int16), np.full(shape, -100, np.int16),
            np.zeros(shape, np.int16), np.zeros(shape, np.bool_),
        )  # fmt: skip

    def place(self, row: int, at: int, conversation: Row) -> None:
        """Write a conversation into a row; what follows it belongs to it until the next one."""
        ids, learned = conversation
        end = at + len(ids)
        self.ids[row, at:end] = ids
        self.targets[row, at : end - 1] = np.where(learned[1:], ids[1:], -100)
        self.conversations[row, at:] += at > 0
        self.used[row, at:end] = True


@dataclass(frozen=True, slots=True)
class Source:
    """Where batches come from."""

    tokenizer: Path
    seed: int
    pad: int
    rows: int
    block: int = 4000  # samples that one process makes at a time

    def batches(self, processes: int) -> Iterator[Batch]:
        """Endless. With 0 processes everything is made here, and in the same order."""
        if not processes:
            tokenizer = Tokenizer(self.tokenizer)
            for n in count():
                yield from self.made(tokenizer, n)
        # Processes are started afresh: a fork of one that uses CUDA is not safe.
        with ProcessPoolExecutor(processes, get_context("spawn"), _start, (self,)) as pool:
            pending: list[Future[list[Batch]]] = []
            try:
                for n in count():
                    pending.append(pool.submit(_block, n))
                    if len(pending) >= processes * _AHEAD:
                        yield from pending.pop(0).result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def made(self, tokenizer: Tokenizer, block: int) -> list[Batch]:
        """The full batches of a block; what is left over at its end is dropped."""
        numbers = range(block * self.block, (block + 1) * self.block)
        rows = (encode(sample(self.seed, Split.TRAIN, i), tokenizer) for i in numbers)
        return list(packed(rows, self.rows, self.pad))


def packed(conversations: Iterator[Row], rows: int, pad: int) -> Iterator[Batch]:
    """Full batches of conversations, each in the first row that has room for it."""
    batch, free = Batch.empty(rows, pad), [0] * rows
    late: list[Row] = []  # they did not fit, and come first in the next batch
    for conversation in conversations:
        if len(conversation[0]) > WIDTH or _placed(batch, free, conversation):
            continue
        late.append(conversation)
        if len(late) >= _MISSES:
            yield batch
            batch, free = Batch.empty(rows, pad), [0] * rows
            late = [waiting for waiting in late if not _placed(batch, free, waiting)]


def _placed(batch: Batch, free: list[int], conversation: Row) -> bool:
    for row, at in enumerate(free):
        if at + len(conversation[0]) <= WIDTH:
            batch.place(row, at, conversation)
            free[row] = -(-(at + len(conversation[0]) + _GAP) // ALIGNED) * ALIGNED
            return True
    return False


_here: dict[str, Any] = {}  # of a worker process


def _start(source: Source) -> None:
    _here.update(source=source, tokenizer=Tokenizer(source.tokenizer))


def _block(number: int) -> list[Batch]:
    return _here["source"].made(_here["tokenizer"], number)
