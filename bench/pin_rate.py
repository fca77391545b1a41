"""What bounds loading: first touch, copying, or pinning? Needs the CUDA library and one GPU.

usage: pin_rate.py [--gib 48] [--threads 14] [--out DIR]

Maps anonymous memory with huge pages as the arena does, touches it, fills it, pins it in pieces of one
layer by one and by several threads, and does all again: pages that a virtual machine's host has already
given to it are quicker the second time, so the difference is the host's share.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from gpu_harness import log, save

from glm53_kernels.cuda import CudaKernels

GIB = 1 << 30
PIECE = 256 << 20
SOURCE = 64 << 20


def huge_page_bytes() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("AnonHugePages"):
            return int(line.split()[1]) * 1024
    return 0


def round_of(kernels: CudaKernels, size: int, threads: int, pinners: int) -> dict[str, float]:
    """GB/s of each stage over a fresh mapping of `size` bytes."""
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_HUGEPAGE)
    holder = ctypes.c_char.from_buffer(area)
    base = ctypes.addressof(holder)
    source = torch.randint(0, 255, (SOURCE,), dtype=torch.uint8)
    pieces = range(0, size, PIECE)
    figures: dict[str, float] = {}

    def timed(name: str, pool_size: int, work: Callable[[int], object]) -> None:
        with ThreadPoolExecutor(pool_size) as pool:
            started = time.perf_counter()
            list(pool.map(work, pieces))
            figures[name] = round(size / (time.perf_counter() - started) / 1e9, 2)

    def touch(at: int) -> None:
        for page in range(at, at + PIECE, 4 << 20):
            ctypes.memset(base + page, 0, 4 << 20)

    def fill(at: int) -> None:
        for part in range(at, at + PIECE, SOURCE):
            ctypes.memmove(base + part, source.data_ptr(), SOURCE)

    timed("touch", threads, touch)
    figures["huge_share"] = round(huge_page_bytes() / size, 3)
    timed("fill_touched", threads, fill)
    timed(f"pin_{pinners}_threads", pinners, lambda at: kernels.host_register(base + at, PIECE))
    for at in pieces:
        kernels.host_unregister(base + at)
    del holder
    area.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=int, default=48)
    parser.add_argument("--threads", type=int, default=14)
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    args = parser.parse_args()
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    kernels = CudaKernels()
    body: dict[str, object] = {"gib": args.gib, "threads": args.threads}
    for number, pinners in enumerate((1, 1, 2, 4)):
        body[f"round_{number}"] = round_of(kernels, args.gib * GIB, args.threads, pinners)
        log(f"round {number}", body[f"round_{number}"])
    save("pin-rate", body, args.out)


if __name__ == "__main__":
    main()
