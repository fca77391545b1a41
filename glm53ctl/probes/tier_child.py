"""Speed of the CPU tier: full-size experts of random weights through the kernel library.

Prints one JSON object. Runs in a process of its own because a wrong CPU ends it with SIGILL, and that
is the answer then.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import struct
import sys
import time
from typing import Any

HIDDEN, INTERMEDIATE, BITS = 4096, 2048, 3
EXPERTS = 16
PICKS = 8
SECONDS = 0.5
ONE = struct.pack("<e", 1.0)


class _Memory:
    """One mapping cut into pieces; addresses stay valid as long as it lives."""

    def __init__(self, size: int) -> None:
        self._mapping = mmap.mmap(-1, size)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self._used = 0

    def put(self, data: bytes) -> int:
        offset = self._used
        self._mapping[offset : offset + len(data)] = data
        self._used = (offset + len(data) + 63) // 64 * 64
        return self._base + offset


def measure(kernels: Any, *, seconds: float = SECONDS) -> float:
    """Trellis bytes per second of `kernels`, a CpuKernels."""
    from glm53_kernels import Expert, ExpertTable, Linear, Picks

    trellis_bytes = HIDDEN * INTERMEDIATE * BITS // 8
    memory = _Memory(EXPERTS * 3 * (trellis_bytes + 4 * HIDDEN) + (1 << 20))
    noise = os.urandom(1 << 20)
    trellis = noise * (trellis_bytes // len(noise))

    def linear(inputs: int, outputs: int) -> Linear:
        scales = (memory.put(ONE * inputs), memory.put(ONE * outputs))
        return Linear(inputs, outputs, BITS, memory.put(trellis), *scales)

    table = ExpertTable(
        [
            Expert(
                linear(HIDDEN, INTERMEDIATE),
                linear(HIDDEN, INTERMEDIATE),
                linear(INTERMEDIATE, HIDDEN),
            )
            for _ in range(EXPERTS)
        ],
        act_limit=10.0,
    )
    x, out = memory.put(struct.pack("<f", 0.01) * HIDDEN), memory.put(bytes(4 * HIDDEN))
    row, weight = memory.put(bytes(4 * PICKS)), memory.put(struct.pack("<f", 0.1) * PICKS)
    batches = [
        Picks(
            PICKS, memory.put(struct.pack(f"<{PICKS}i", *range(start, start + PICKS))), row, weight
        )
        for start in range(0, EXPERTS, PICKS)
    ]
    kernels.expert_forward(table, x, out, rows=1, picks=batches[0])
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        kernels.expert_forward(table, x, out, rows=1, picks=batches[done % len(batches)])
        done += 1
    return done * PICKS * 3 * trellis_bytes / (time.perf_counter() - started)


def main() -> None:
    from glm53_kernels import CpuKernels, KernelError

    cpus = [int(text) for text in sys.argv[1].split(",")]
    os.sched_setaffinity(0, set(cpus))
    try:
        kernels = CpuKernels(threads=len(cpus), cpus=cpus)
        answer = {"bytes_per_s": measure(kernels), "isa": kernels.isa}
    except KernelError as err:
        answer = {"problem": str(err)}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
