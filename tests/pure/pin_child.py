"""Child of test_pin_faults: the kernel itself refuses memory to the expert arena.

usage: pin_child.py memlock|address_space ; reports as JSON what was said and what is still locked.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from glm53_kernels.cuda import CudaKernelError
from glm53_server.engine.exl3 import PinLimit
from glm53_server.moe.arena import ExpertArena, PinRefused, RecordLayout

LIBC = ctypes.CDLL(None, use_errno=True)
LAYER = 1 << 20


class Locking:
    """Pins with mlock, which counts against RLIMIT_MEMLOCK as the driver's pinning does on some systems."""

    def host_register(self, address: int, size_bytes: int) -> int:
        if LIBC.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes)):
            raise CudaKernelError(f"cudaHostRegister: {os.strerror(ctypes.get_errno())}")
        return address

    def host_unregister(self, address: int) -> None:
        assert LIBC.munlock(ctypes.c_void_p(address), ctypes.c_size_t(LAYER)) == 0


def drop_capabilities() -> None:
    """Root may lock what it wants: not here."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    assert LIBC.capset(header, (ctypes.c_uint32 * 6)()) == 0


def status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def limit(kind: str) -> None:
    if kind == "memlock":
        drop_capabilities()
        allowed = 2 * LAYER + LAYER // 2
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (allowed, allowed))
    else:
        allowed = status_bytes("VmSize") + (64 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))


def fill(layer: int, destination: torch.Tensor, pool: ThreadPoolExecutor) -> None:
    del pool
    destination.fill_(layer)


def main(kind: str) -> None:
    driver: Any = Locking()
    experts = 4 if kind == "memlock" else 4 << 10
    layout = RecordLayout(6, experts, LAYER // 16, LAYER // 16, LAYER // 8)
    limit(kind)
    report: dict[str, object] = {}
    arena: ExpertArena | None = None
    try:
        arena = ExpertArena(layout, driver, threads=1)
        arena.start_filling(fill, lambda done, total: None)
        for layer in range(layout.layers):
            arena.wait_layer(layer)
            report["locked_bytes"] = status_bytes("VmLck")
    except PinRefused as err:
        told = PinLimit.of(err)
        report |= {"pinned": err.pinned_bytes, "message": told.message, "hint": told.hint}
    if arena is not None:
        arena.close()
    report["locked_after"] = status_bytes("VmLck")
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
