"""The home of every routed expert: one pinned, GPU-readable arena in host RAM.

Record of key k = layer * experts + expert: the gate, up and down trellis back to back. Layers are
filled and pinned one after the other by a background thread while the rest of the model loads;
`wait_layer` blocks until a layer's addresses may be used by the GPU. The arena is written once.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from glm53_kernels.cuda import CudaKernelError, CudaKernels

log = logging.getLogger(__name__)

PAGE_BYTES = mmap.PAGESIZE
HUGE_PAGE_BYTES = 2 << 20
TOUCH_BYTES = 16 << 20
MADV_POPULATE_WRITE = 23  # Linux 5.14; Python has no name for it
SWITCH_INTERVAL_S = 2e-4


class PinRefused(MemoryError):
    """The driver or the kernel refused host memory after `pinned_bytes` of `wanted_bytes`."""

    def __init__(self, message: str, pinned_bytes: int, wanted_bytes: int) -> None:
        super().__init__(message)
        self.pinned_bytes = pinned_bytes
        self.wanted_bytes = wanted_bytes


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """Bytes of one expert's record. All offsets are multiples of 16 (the kernels' load width)."""

    layers: int
    experts: int
    gate_bytes: int
    up_bytes: int
    down_bytes: int

    @property
    def record_bytes(self) -> int:
        return self.gate_bytes + self.up_bytes + self.down_bytes

    @property
    def offsets(self) -> tuple[int, int, int]:
        return (0, self.gate_bytes, self.gate_bytes + self.up_bytes)

    @property
    def layer_bytes(self) -> int:
        return self.experts * self.record_bytes

    @property
    def total_bytes(self) -> int:
        return self.layers * self.layer_bytes


@contextmanager
def _pool(count: int, name: str) -> Iterator[ThreadPoolExecutor]:
    """A pool for one block. What has not begun at its end is for nothing: a failed load is told at once."""
    pool = ThreadPoolExecutor(count, name)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


FillLayer = Callable[[int, torch.Tensor, ThreadPoolExecutor], None]
"""fill(layer, destination uint8 [layer_bytes], pool): write one layer's records, return when done."""


class ExpertArena:
    """Owns the mapping and its registrations. `home` is the device alias of record 0.

    A layer is pinned right after it was filled: touched pages register several times faster, and
    the next layer is filled meanwhile. Raises PinRefused when the mapping is refused, and from
    wait_layer when pinning is; `close` then gives back what was pinned.
    """

    def __init__(self, layout: RecordLayout, kernels: CudaKernels, threads: int) -> None:
        self.layout = layout
        self._kernels = kernels
        self._stride = -(-layout.layer_bytes // PAGE_BYTES) * PAGE_BYTES
        if layout.layers > 1 and self._stride != layout.layer_bytes:
            # Registrations are whole pages: small layers share one registration instead.
            self._group = layout.layers
        else:
            self._group = 1
        size = -(-layout.total_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        try:
            self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as err:
            raise PinRefused(
                f"{size / 2**30:.1f} GiB of host memory could not be mapped: {err.strerror}",
                0,
                size,
            ) from err
        self._map.madvise(mmap.MADV_HUGEPAGE)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8, count=size)
        self.home = self.bytes.data_ptr()
        self._registered: list[int] = []
        self._ready = [threading.Event() for _ in range(layout.layers)]
        self._error: BaseException | None = None
        self._threads = threads
        self._closing = False
        self._worker: threading.Thread | None = None
        self.filled_bytes = 0
        # The first three overlap; ready_s is from the start to the last pin, wait_s what callers waited.
        self.touch_s = 0.0
        self.fill_s = 0.0
        self.pin_s = 0.0
        self.ready_s = 0.0
        self.wait_s = 0.0

    def layer_view(self, layer: int) -> torch.Tensor:
        """uint8 [layer_bytes] of one layer's records."""
        start = layer * self.layout.layer_bytes
        return self.bytes[start : start + self.layout.layer_bytes]

    def part_view(self, layer: int, expert: int, part: int) -> torch.Tensor:
        """uint8 view of one projection's trellis; part 0 gate, 1 up, 2 down."""
        sizes = (self.layout.gate_bytes, self.layout.up_bytes, self.layout.down_bytes)
        start = (
            layer * self.layout.layer_bytes
            + expert * self.layout.record_bytes
            + self.layout.offsets[part]
        )
        return self.bytes[start : start + sizes[part]]

    def start_filling(self, fill: FillLayer, progress: Callable[[int, int], None]) -> None:
        """Fill and pin all layers in order on a background thread; progress(done, total) in bytes."""
        self._worker = threading.Thread(
            target=self._fill_all, args=(fill, progress), name="glm53-arena", daemon=True
        )
        self._worker.start()

    def _fill_all(self, fill: FillLayer, progress: Callable[[int, int], None]) -> None:
        began = time.perf_counter()
        # Each piece needs the interpreter twice for a moment, while the model's own loading keeps it
        # busy: at the usual 5 ms per turn the readers would mostly wait for theirs.
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        try:
            with (
                _pool(self._threads, "glm53-fill") as pool,
                _pool(self._threads, "glm53-touch") as toucher,
                _pool(1, "glm53-pin") as pinner,
            ):
                touched = self._touch(toucher)
                pins = []
                for first in range(0, self.layout.layers, self._group):
                    if self._closing or any(pin.done() and pin.exception() for pin in pins):
                        break  # what follows would be filled for nothing
                    last = min(first + self._group, self.layout.layers)
                    while touched and touched[0][0] < last * self.layout.layer_bytes:
                        self.touch_s = touched.popleft()[1].result() - began
                    started = time.perf_counter()
                    for layer in range(first, last):
                        fill(layer, self.layer_view(layer), pool)
                        self.filled_bytes += self.layout.layer_bytes
                        progress(self.filled_bytes, self.layout.total_bytes)
                    self.fill_s += time.perf_counter() - started
                    pins.append(pinner.submit(self._pin, first, last))
                for pin in pins:
                    pin.result()
                self.ready_s = time.perf_counter() - began
        except BaseException as err:  # noqa: BLE001 - carried to every waiter
            self._error = err
            for event in self._ready:
                event.set()
        finally:
            sys.setswitchinterval(interval)

    def _touch(self, pool: ThreadPoolExecutor) -> deque[tuple[int, Future[float]]]:
        """Have the kernel make all pages, many at a time and ahead of the fill: single faults in the middle
        of it come several times slower. Returns each piece's first byte, and when it was made.
        """
        populate = ctypes.CDLL(None).madvise
        populate.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        size = self.bytes.numel()

        def touch(at: int) -> float:
            if not self._closing:  # an old kernel refuses, and the fill touches them
                populate(self.home + at, min(TOUCH_BYTES, size - at), MADV_POPULATE_WRITE)
            return time.perf_counter()

        return deque((at, pool.submit(touch, at)) for at in range(0, size, TOUCH_BYTES))

    def _pin(self, first: int, last: int) -> None:
        started = time.perf_counter()
        address = self.home + first * self.layout.layer_bytes
        size = (last - first) * self.layout.layer_bytes
        size = -(-size // PAGE_BYTES) * PAGE_BYTES
        try:
            alias = self._kernels.host_register(address, size)
        except CudaKernelError as err:
            pinned, wanted = first * self.layout.layer_bytes, self.layout.total_bytes
            raise PinRefused(
                f"pinning stopped at {pinned / 2**30:.1f} of {wanted / 2**30:.1f} GiB: {err}",
                pinned,
                wanted,
            ) from err
        self._registered.append(address)
        if alias != address:
            raise PinRefused(
                "the device alias of pinned memory differs from its host address (no UVA)",
                0,
                self.layout.total_bytes,
            )
        self.pin_s += time.perf_counter() - started
        for layer in range(first, last):
            self._ready[layer].set()

    def wait_layer(self, layer: int) -> None:
        """Block until the layer's bytes are final and pinned. Raises what filling or pinning raised."""
        if not self._ready[layer].is_set():
            started = time.perf_counter()
            self._ready[layer].wait()
            self.wait_s += time.perf_counter() - started
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Unpin, after the layer that is being filled. The GPU must have no work left that reads it."""
        self._closing = True
        if self._worker is not None:
            self._worker.join()
        if self._error is None and not all(event.is_set() for event in self._ready):
            self._error = RuntimeError("the arena was closed before it was filled")
        for event in self._ready:  # nobody waits for ever for what will not come
            event.set()
        for address in self._registered:
            try:
                self._kernels.host_unregister(address)
            except CudaKernelError as err:  # of a lost device; what ended the load is what to tell
                log.warning("expert memory stays pinned until the process ends: %s", err)
        self._registered.clear()
