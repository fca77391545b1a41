"""The expert arena with a driver that only keeps books: filling, pinning, refusals, closing."""

from __future__ import annotations

import mmap
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from glm53_kernels.cuda import CudaKernelError
from glm53_server.moe.arena import ExpertArena, PinRefused, RecordLayout

PAGE = mmap.PAGESIZE
# Layers of whole pages are pinned one by one, smaller ones together.
WHOLE = RecordLayout(layers=4, experts=4, gate_bytes=PAGE, up_bytes=PAGE, down_bytes=2 * PAGE)
SMALL = RecordLayout(layers=3, experts=3, gate_bytes=32, up_bytes=48, down_bytes=64)


class Driver:
    """Registers memory on paper; refuses after `room` bytes."""

    def __init__(self, room: int = 1 << 40, shift: int = 0) -> None:
        self.room, self.shift = room, shift
        self.registered: dict[int, int] = {}
        self.order: list[int] = []

    def host_register(self, address: int, size_bytes: int) -> int:
        assert address % PAGE == size_bytes % PAGE == 0
        if size_bytes > self.room:
            raise CudaKernelError("cudaHostRegister: out of memory")
        self.room -= size_bytes
        self.registered[address] = size_bytes
        self.order.append(address)
        return address + self.shift

    def host_unregister(self, address: int) -> None:
        del self.registered[address]


def made(layout: RecordLayout, driver: Driver) -> ExpertArena:
    books: Any = driver
    return ExpertArena(layout, books, threads=2)


def fill(layer: int, destination: torch.Tensor, pool: ThreadPoolExecutor) -> None:
    pool.submit(destination.fill_, layer + 1).result()


def silent(done: int, total: int) -> None:
    del done, total


@pytest.mark.parametrize("layout", [WHOLE, SMALL])
def test_every_byte_is_filled_pinned_and_given_back(layout: RecordLayout) -> None:
    driver, seen = Driver(), []
    arena = made(layout, driver)
    arena.start_filling(fill, lambda done, total: seen.append((done, total)))
    for layer in range(layout.layers):
        arena.wait_layer(layer)
        assert (arena.layer_view(layer) == layer + 1).all()
    assert seen == [(i * layout.layer_bytes, layout.total_bytes) for i in range(1, layout.layers + 1)]  # fmt: skip
    assert sum(driver.registered.values()) >= layout.total_bytes
    assert driver.order[0] == arena.home
    assert arena.bytes.numel() <= layout.total_bytes + (2 << 20)
    arena.close()
    assert driver.registered == {}


def test_parts_of_a_record_lie_back_to_back() -> None:
    arena = made(SMALL, Driver())
    at = arena.home
    for layer in range(SMALL.layers):
        for expert in range(SMALL.experts):
            for part, size in enumerate((32, 48, 64)):
                view = arena.part_view(layer, expert, part)
                assert (view.data_ptr(), view.numel()) == (at, size)
                at += size
    assert at == arena.home + SMALL.total_bytes


def test_a_layer_may_be_used_while_the_next_is_filled() -> None:
    go = threading.Event()

    def slow(layer: int, destination: torch.Tensor, pool: ThreadPoolExecutor) -> None:
        if layer == 1:
            assert go.wait(10)
        fill(layer, destination, pool)

    arena = made(WHOLE, Driver())
    arena.start_filling(slow, silent)
    arena.wait_layer(0)
    assert (arena.layer_view(0) == 1).all()
    go.set()
    arena.wait_layer(WHOLE.layers - 1)
    arena.close()


def test_pinning_refused_midway_says_how_far_it_came() -> None:
    driver = Driver(room=2 * WHOLE.layer_bytes)
    arena = made(WHOLE, driver)
    arena.start_filling(fill, silent)
    with pytest.raises(PinRefused, match=r"pinning stopped at 0\.0 of 0\.0 GiB: cudaHostRegister"):
        arena.wait_layer(3)
    arena.close()
    assert driver.registered == {}, "what was pinned before the refusal is given back"


def test_a_device_alias_elsewhere_is_refused() -> None:
    arena = made(WHOLE, Driver(shift=PAGE))
    arena.start_filling(fill, silent)
    with pytest.raises(PinRefused, match="no UVA"):
        arena.wait_layer(0)
    arena.close()


def test_a_reader_that_fails_wakes_every_waiter() -> None:
    def broken(layer: int, destination: torch.Tensor, pool: ThreadPoolExecutor) -> None:
        if layer == 2:
            raise OSError("model.safetensors: ends at byte 7")
        fill(layer, destination, pool)

    arena = made(WHOLE, Driver())
    arena.start_filling(broken, silent)
    with pytest.raises(OSError, match="ends at byte 7"):
        arena.wait_layer(3)
    arena.close()
