"""Read speed of the disk below a file that is already there. Prints one JSON object; never writes.

O_DIRECT where the file system has it, else ordinary reads of pages dropped from the cache before.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import sys
import threading
import time

BLOCK_BYTES = 4 << 20
THREADS = 4
SECONDS = 1.0


def measure(path: str, *, seconds: float = SECONDS) -> tuple[float, bool]:
    """(bytes per second, whether the page cache was bypassed)."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
        os.preadv(handle, [mmap.mmap(-1, 4096)], 0)
        direct = True
    except OSError as err:
        if err.errno != errno.EINVAL:
            raise
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        direct = False
    blocks = os.fstat(handle).st_size // BLOCK_BYTES
    todo = iter(range(blocks))
    lock = threading.Lock()
    done_bytes = [0]
    end = time.perf_counter() + seconds

    def read() -> None:
        buffer = mmap.mmap(-1, BLOCK_BYTES)
        while time.perf_counter() < end:
            with lock:
                block = next(todo, None)
            if block is None:
                return
            count = os.preadv(handle, [buffer], block * BLOCK_BYTES)
            with lock:
                done_bytes[0] += count

    started = time.perf_counter()
    threads = [threading.Thread(target=read) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(handle)
    return done_bytes[0] / (time.perf_counter() - started), direct


def main() -> None:
    try:
        rate, direct = measure(sys.argv[1])
        answer: dict[str, object] = {"bytes_per_s": rate, "direct": direct}
    except OSError as err:
        answer = {"problem": f"{sys.argv[1]}: {err.strerror}"}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
