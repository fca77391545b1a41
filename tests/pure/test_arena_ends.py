"""The arena's end while its pages are still being made: nothing more is touched, no thread is left."""

from __future__ import annotations

import ctypes
import errno
import mmap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glm53_kernels.cuda import CudaKernelError
from glm53_server.moe import arena as arena_module
from glm53_server.moe.arena import ExpertArena, PinRefused, RecordLayout

PAGE = mmap.PAGESIZE
LAYOUT = RecordLayout(layers=4, experts=4, gate_bytes=PAGE, up_bytes=PAGE, down_bytes=2 * PAGE)
PIECES = (2 << 20) // PAGE  # of the mapping, with pieces of a page
Madvise = Callable[[int, int, int], int]


class Driver:
    """Registers memory on paper; after `room` bytes it refuses, once lost it gives nothing back."""

    def __init__(self, room: int = 1 << 40) -> None:
        self.room, self.lost = room, False
        self.pinned: set[int] = set()

    def host_register(self, address: int, size_bytes: int) -> int:
        if size_bytes > self.room:
            raise CudaKernelError("cudaHostRegister: out of memory")
        self.room -= size_bytes
        self.pinned.add(address)
        return address

    def host_unregister(self, address: int) -> None:
        self.pinned.remove(address)
        if self.lost:
            raise CudaKernelError("cudaHostUnregister: an illegal memory access was encountered")


class Kernel:
    """A kernel that makes pages with `populate`, and what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, populate: Madvise) -> None:
        self.asked: list[tuple[int, int]] = []
        self._populate = populate
        monkeypatch.setattr(arena_module, "TOUCH_BYTES", PAGE)
        libc = SimpleNamespace(madvise=lambda *given: self.madvise(*given))
        monkeypatch.setattr(arena_module.ctypes, "CDLL", lambda _: libc)

    def madvise(self, address: int, size: int, advice: int) -> int:
        assert advice == arena_module.MADV_POPULATE_WRITE
        self.asked.append((address, size))
        return self._populate(address, size, advice)


def slowly(address: int, size: int, advice: int) -> int:
    del address, size, advice
    time.sleep(0.005)
    return 0


def fill(layer: int, destination: torch.Tensor, pool: ThreadPoolExecutor) -> None:
    pool.submit(destination.fill_, layer + 1).result()


def silent(done: int, total: int) -> None:
    del done, total


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("glm53-")]


def filling(driver: Any, function: arena_module.FillLayer = fill) -> ExpertArena:
    arena = ExpertArena(LAYOUT, driver, threads=2)
    arena.start_filling(function, silent)
    return arena


def check_over(arena: ExpertArena, kernel: Kernel) -> None:
    """Closed: no thread, and no page made or byte written any more."""
    asked, bytes_then = len(kernel.asked), arena.bytes.clone()
    assert threads() == []
    time.sleep(0.03)
    assert len(kernel.asked) == asked
    assert torch.equal(arena.bytes, bytes_then)


def test_a_fill_that_fails_is_told_before_all_pages_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = Kernel(monkeypatch, slowly)

    def broken(layer: int, destination: torch.Tensor, pool: ThreadPoolExecutor) -> None:
        del layer, destination, pool
        raise OSError(errno.EIO, "Input/output error", "model.safetensors")

    arena = filling(Driver(), broken)
    with pytest.raises(OSError, match=r"model\.safetensors"):
        arena.wait_layer(3)
    arena.close()
    assert len(kernel.asked) < PIECES / 2
    check_over(arena, kernel)


def test_a_refused_pin_is_told_before_all_pages_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, driver = Kernel(monkeypatch, slowly), Driver(room=LAYOUT.layer_bytes)
    arena = filling(driver)
    with pytest.raises(PinRefused):
        arena.wait_layer(3)
    arena.close()
    assert len(kernel.asked) < PIECES / 2
    assert driver.pinned == set()
    check_over(arena, kernel)


@pytest.mark.parametrize("after", range(0, 3 * LAYOUT.layer_bytes // PAGE, 7))
def test_it_may_be_closed_while_pages_are_made(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    reached = threading.Event()

    def populate(address: int, size: int, advice: int) -> int:
        if len(kernel.asked) > after:
            reached.set()
        return slowly(address, size, advice)

    kernel, driver = Kernel(monkeypatch, populate), Driver()
    arena = filling(driver)
    assert reached.wait(10)
    arena.close()
    assert len(kernel.asked) < after + PIECES / 4
    assert driver.pinned == set()
    check_over(arena, kernel)
    with pytest.raises(RuntimeError, match="closed before it was filled"):
        arena.wait_layer(3)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOMEM, errno.EFAULT])
def test_a_kernel_that_makes_no_pages_leaves_that_to_the_fill(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(address: int, size: int, advice: int) -> int:
        del address, size, advice
        ctypes.set_errno(number)
        return -1

    kernel = Kernel(monkeypatch, refuse)
    arena = filling(Driver())
    for layer in range(LAYOUT.layers):
        arena.wait_layer(layer)
        assert (arena.layer_view(layer) == layer + 1).all()
    arena.close()
    assert len(kernel.asked) == PIECES
    check_over(arena, kernel)


def test_trouble_of_a_toucher_reaches_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(address: int, size: int, advice: int) -> int:
        del address, size, advice
        raise MemoryError("no room for a frame")

    kernel, driver = Kernel(monkeypatch, broken), Driver()
    arena = filling(driver)
    for layer in range(LAYOUT.layers):
        with pytest.raises(MemoryError, match="no room for a frame"):
            arena.wait_layer(layer)
    arena.close()
    assert driver.pinned == set()
    check_over(arena, kernel)


def test_pieces_cover_the_mapping_once_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, lambda *_: 0)
    monkeypatch.setattr(arena_module, "TOUCH_BYTES", 3 * PAGE)  # the last piece is shorter
    arena = filling(Driver())
    arena.wait_layer(3)
    arena.close()
    at = arena.home
    for address, size in sorted(kernel.asked):
        assert address == at
        at += size
    assert at == arena.home + arena.bytes.numel()


def test_a_lost_device_does_not_hide_what_ended_the_load(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel, driver = Kernel(monkeypatch, lambda *_: 0), Driver()
    arena = filling(driver)
    arena.wait_layer(3)
    driver.lost = True
    arena.close()
    assert driver.pinned == set(), "every layer was tried"
    assert "stays pinned" in caplog.text
    check_over(arena, kernel)
    arena.close()
