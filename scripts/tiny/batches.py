"""Training batches: rows of similar length, made in other processes, in an order that a seed decides."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from random import Random

from glm53_server.tokenizer import Tokenizer

from .corpus import sample
from .rendering import encode
from .samples import Split

MAX_WIDTH = 768  # longer conversations are left out; the longest seen are around 700 tokens
_STEP = 32  # widths are multiples of this
_AHEAD = 3  # blocks per process that are under way

Row = tuple[list[int], list[bool]]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows [rows][width], padded. `targets` is the next id where that id is learned, else -100."""

    ids: list[list[int]]
    targets: list[list[int]]


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows come from."""

    tokenizer: Path
    seed: int
    pad: int
    tokens: int  # of a batch, padding included
    block: int = 2000  # samples that one process makes at a time

    def batches(self, processes: int) -> Iterator[Batch]:
        """Endless. With 0 processes everything is made here, and in the same order."""
        waiting: dict[int, list[Row]] = {}
        order = Random(self.seed)
        for rows in self._blocks(processes):
            ready: list[Batch] = []
            for row in rows:
                width = -(-len(row[0]) // _STEP) * _STEP
                waiting.setdefault(width, []).append(row)
                if len(waiting[width]) * width >= self.tokens:
                    ready.append(_batch(waiting.pop(width), width, self.pad))
            order.shuffle(ready)
            yield from ready

    def _blocks(self, processes: int) -> Iterator[list[Row]]:
        if not processes:
            tokenizer = Tokenizer(self.tokenizer)
            yield from (_rows(tokenizer, self.seed, self._numbers(n)) for n in count())
            return
        # Processes are started afresh: a fork of one that uses CUDA is not safe.
        with ProcessPoolExecutor(
            processes, get_context("spawn"), _start, (self.tokenizer,)
        ) as pool:  # fmt: skip
            pending: list[Future[list[Row]]] = []
            try:
                for n in count():
                    pending.append(pool.submit(_block, self.seed, self._numbers(n)))
                    if len(pending) >= processes * _AHEAD:
                        yield pending.pop(0).result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _numbers(self, block: int) -> range:
        return range(block * self.block, (block + 1) * self.block)


_here: dict[str, Tokenizer] = {}  # of a worker process


def _start(tokenizer: Path) -> None:
    _here["tokenizer"] = Tokenizer(tokenizer)


def _block(seed: int, numbers: range) -> list[Row]:
    return _rows(_here["tokenizer"], seed, numbers)


def _rows(tokenizer: Tokenizer, seed: int, numbers: range) -> list[Row]:
    made = (encode(sample(seed, Split.TRAIN, i), tokenizer) for i in numbers)
    return [row for row in made if len(row[0]) <= MAX_WIDTH]


def _batch(rows: list[Row], width: int, pad: int) -> Batch:
    ids, targets = [], []
    for row, learned in rows:
        after = [i if wanted else -100 for i, wanted in zip(row[1:], learned[1:], strict=True)]
        ids.append(row + [pad] * (width - len(row)))
        targets.append(after + [-100] * (width - len(after)))
    return Batch(ids, targets)
