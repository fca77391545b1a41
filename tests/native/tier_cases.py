"""The GPU's side of the CPU tier's mailbox, played by a test: kernels/csrc/core/mailbox.h in numpy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import exl3_oracle as oracle
import numpy as np
from native_cases import Choice, table_of

from glm53_kernels import CpuKernels, CpuTier, ExpertTable, TierShape

ROWS, PICKS = 8, 256
POSTED, DONE, LAYER, NUM_ROWS, NUM_PICKS, EXPERT = 0, 64, 128, 132, 136, 192
ROW, WEIGHT = EXPERT + 4 * PICKS, EXPERT + 8 * PICKS
X = EXPERT + 12 * PICKS
X_TYPE = np.float32
MASK = 0xFFFFFFFF


class Box:
    """One mailbox, in ordinary memory or in `memory` (uint8, 64-byte aligned).

    `post` writes what cache_step writes, in its order.
    """

    def __init__(self, size_bytes: int, hidden: int, memory: np.ndarray | None = None) -> None:
        self.hidden = hidden
        raw = np.zeros(size_bytes + 64, np.uint8) if memory is None else memory
        start = -raw.ctypes.data % 64
        self._bytes = raw[start : start + size_bytes]
        self._out_at = X + ROWS * hidden * np.dtype(X_TYPE).itemsize
        assert self._out_at + 4 * ROWS * hidden == size_bytes, "the mailbox has another layout"

    @property
    def address(self) -> int:
        return self._bytes.ctypes.data

    def word(self, at: int, kind: type = np.uint32, count: int = 1) -> np.ndarray:
        return self._bytes[at : at + np.dtype(kind).itemsize * count].view(kind)

    def out(self, rows: int) -> np.ndarray:
        return self.word(self._out_at, np.float32, rows * self.hidden).reshape(rows, self.hidden)

    def post(self, sequence: int, layer: int, choice: Choice, x: np.ndarray) -> None:
        """x float32 [rows, hidden]; the device sends what fp16 keeps of it."""
        n = len(choice.expert)
        self.word(EXPERT, np.int32, PICKS)[:n] = choice.expert
        self.word(ROW, np.int32, PICKS)[:n] = choice.row
        self.word(WEIGHT, np.float32, PICKS)[:n] = choice.weight
        self.word(X, X_TYPE, x.size)[:] = x.astype(np.float16).ravel()
        self.word(LAYER)[0], self.word(NUM_ROWS)[0], self.word(NUM_PICKS)[0] = layer, len(x), n
        self.word(POSTED)[0] = sequence & MASK

    def empty(self, sequence: int) -> None:
        """The device had nothing for the CPU and answers itself."""
        self.word(DONE)[0] = sequence & MASK

    @property
    def done(self) -> int:
        return int(self.word(DONE)[0])

    def wait(self, sequence: int, timeout_s: float = 20.0) -> float:
        """Wait as the stream does (cyclic >=); returns the seconds waited."""
        started = time.monotonic()
        while (self.done - sequence) & MASK >= 1 << 31:
            assert time.monotonic() - started < timeout_s, f"no answer to {sequence}: {self.done}"
            time.sleep(0.0002)
        return time.monotonic() - started


@dataclass(frozen=True, slots=True)
class Running:
    """An open tier, its pool and mailbox, and the same experts as tables for expert_forward."""

    tier: CpuTier
    kernels: CpuKernels
    box: Box
    tables: tuple[ExpertTable, ...]

    def expected(self, layer: int, choice: Choice, x: np.ndarray) -> np.ndarray:
        """What expert_forward gives; call it while no job runs: the pool is the tier's."""
        sent = x.astype(np.float16).astype(np.float32)
        out = np.zeros_like(sent)
        self.kernels.expert_forward(self.tables[layer], sent, out, rows=len(x), picks=choice.picks)
        return out

    def run(self, sequence: int, layer: int, choice: Choice, x: np.ndarray) -> np.ndarray:
        self.box.post(sequence, layer, choice, x)
        self.box.wait(sequence)
        return self.box.out(len(x)).copy()


@contextmanager
def running(
    kernels: CpuKernels,
    layers: Sequence[Sequence[oracle.Expert]],
    *,
    watchdog_ms: int = 5000,
    act_limit: float = 10.0,
) -> Iterator[Running]:
    """A tier over these experts; the arrays stay alive as long as it runs."""
    tables = tuple(table_of(list(experts), act_limit=act_limit) for experts in layers)
    first = tables[0]
    shape = TierShape(
        layers=len(layers), experts=len(first), hidden=first.hidden,
        intermediate=first.intermediate, bits=first.bits, act_limit=act_limit,
        watchdog_ms=watchdog_ms,
    )  # fmt: skip
    addresses = [
        tuple(array.ctypes.data for linear in expert for array in linear)
        for experts in layers
        for expert in experts
    ]
    box = Box(CpuTier.mailbox_bytes(kernels, first.hidden), first.hidden)
    tier = CpuTier(kernels, shape, addresses, box.address)
    try:
        yield Running(tier, kernels, box, tables)
    finally:
        tier.close()


def wait_until(true: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


def slow_job(open_: Running, seconds: float) -> Choice:
    """A job of about `seconds` on this machine now: distinct experts, timed with one of them."""
    x = np.ones((1, open_.box.hidden), np.float32)
    started = time.monotonic()
    open_.expected(0, Choice.of((0, 0, 1.0)), x)
    each_s = time.monotonic() - started
    count = min(PICKS, len(open_.tables[0]), max(2, round(seconds / each_s)))
    return Choice.of(*((i, 0, 1.0 / count) for i in range(count)))
