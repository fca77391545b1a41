"""Read bandwidth of memory: one thread per given CPU scans its own buffer. Prints one JSON object.

Uses the C library's memchr for a byte that is not there, which reads at full width; ctypes releases
the GIL meanwhile.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import threading
import time
from contextlib import suppress

SECONDS = 0.5
TOTAL_BYTES = 1 << 29
LEAST_BYTES = 32 << 20


def measure(cpus: list[int], *, total_bytes: int = TOTAL_BYTES, seconds: float = SECONDS) -> float:
    """Bytes per second read by all threads together."""
    size = max(LEAST_BYTES, total_bytes // len(cpus))
    barrier = threading.Barrier(len(cpus) + 1)
    done_bytes = [0] * len(cpus)
    threads = [
        threading.Thread(target=_scan, args=(index, cpu, size, seconds, barrier, done_bytes))
        for index, cpu in enumerate(cpus)
    ]
    for thread in threads:
        thread.start()
    barrier.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    return sum(done_bytes) / (time.perf_counter() - started)


def _scan(
    index: int, cpu: int, size: int, seconds: float, barrier: threading.Barrier, done: list[int]
) -> None:
    with suppress(OSError):  # a CPU taken away meanwhile: measure unpinned
        os.sched_setaffinity(0, {cpu})  # 0 is this thread
    memory = mmap.mmap(-1, size)
    memory.madvise(mmap.MADV_HUGEPAGE)
    first = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(first)
    ctypes.memset(address, 1, size)  # touched pages, and not the shared zero page
    search = ctypes.CDLL(None).memchr
    search.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    search.restype = ctypes.c_void_p
    barrier.wait()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        search(address, 2, size)
        done[index] += size


def main() -> None:
    cpus = [int(text) for text in sys.argv[1].split(",")]
    sys.stdout.write(json.dumps({"bytes_per_s": measure(cpus)}))


if __name__ == "__main__":
    main()
