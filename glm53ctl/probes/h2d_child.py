"""Copy speed from pinned host memory to the GPU, through libcuda alone. Prints one JSON object.

The link's generation and width are sampled while it copies, because an idle link reads Gen1. A
refused pin or a broken driver poisons only this process.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

MIB = 1 << 20
WARM_UP_S, RUN_S, RUNS = 0.25, 0.5, 2
PIN_STEP_BYTES, PIN_MOST_BYTES = 256 * MIB, 4 << 30
PIN_USABLE = 0.8  # of what could be pinned at all


class CudaError(Exception):
    """A driver call that failed: its name and code."""


class Cuda:
    """The few driver calls this needs, on device 0 of CUDA_VISIBLE_DEVICES."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise CudaError(f"{name}: CUDA error {code}")

    def handle(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """Call a function whose first parameter receives a pointer."""
        found = ctypes.c_void_p()
        self.call(name, ctypes.byref(found), *arguments)
        return found

    def pin(self, size: int) -> ctypes.c_void_p:
        """Pinned and touched host memory."""
        memory = self.handle("cuMemHostAlloc", ctypes.c_size_t(size), 0)
        ctypes.memset(memory, 1, size)
        return memory


def copy_rate(cuda: Cuda, size: int, *, chunk: int, seconds: float) -> float:
    """Bytes per second of back-to-back asynchronous copies of `chunk` bytes, by device events."""
    host = cuda.pin(size)
    device = cuda.handle("cuMemAlloc_v2", ctypes.c_size_t(size))
    stream = cuda.handle("cuStreamCreate", 0)
    begin, end = cuda.handle("cuEventCreate", 0), cuda.handle("cuEventCreate", 0)
    elapsed_ms, copied = 0.0, 0
    try:
        while elapsed_ms < seconds * 1000:
            cuda.call("cuEventRecord", begin, stream)
            for offset in range(0, size, chunk):
                cuda.call(
                    "cuMemcpyHtoDAsync_v2",
                    ctypes.c_void_p((device.value or 0) + offset),
                    ctypes.c_void_p((host.value or 0) + offset),
                    ctypes.c_size_t(chunk),
                    stream,
                )
            cuda.call("cuEventRecord", end, stream)
            cuda.call("cuEventSynchronize", end)
            took = ctypes.c_float()
            cuda.call("cuEventElapsedTime", ctypes.byref(took), begin, end)
            elapsed_ms += took.value
            copied += size
    finally:
        cuda.call("cuMemFree_v2", device)
        cuda.call("cuMemFreeHost", host)
    return copied / elapsed_ms * 1000


def pin_budget(pin: Callable[[int], bool], *, step: int, most: int) -> int | None:
    """Usable pinned bytes when `pin(step)` starts to refuse before `most`; None when it never does."""
    pinned = 0
    while pinned < most:
        if not pin(step):
            return int(pinned * PIN_USABLE)
        pinned += step
    return None


class LinkSampler:
    """NVML's idea of the link every 20 ms, in a thread beside the copies: the best generation and width,
    the packets sent again, and every reason for slower clocks that was seen.
    """

    def __init__(self, uuid: str) -> None:
        self.generation: int | None = None
        self.width: int | None = None
        self.replays: int | None = None
        self.throttle: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(uuid,), daemon=True)

    def __enter__(self) -> LinkSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=1)

    def _run(self, uuid: str) -> None:
        import pynvml  # pyright: ignore[reportMissingTypeStubs]

        nvml: Any = pynvml
        try:
            nvml.nvmlInit()
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            first_replays = _number(nvml, "nvmlDeviceGetPcieReplayCounter", handle)
            while not self._stop.wait(0.02):
                generation = int(nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))
                width = int(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))
                self.generation = max(self.generation or 0, generation)
                self.width = max(self.width or 0, width)
                reasons = _number(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
                if reasons is not None:
                    self.throttle = (self.throttle or 0) | reasons
                replays = _number(nvml, "nvmlDeviceGetPcieReplayCounter", handle)
                if replays is not None and first_replays is not None:
                    self.replays = replays - first_replays
        except nvml.NVMLError:
            return  # the rate stands without the link


def _number(nvml: Any, name: str, handle: Any) -> int | None:
    """What many cards do not tell; None then."""
    try:
        return int(getattr(nvml, name)(handle))
    except (nvml.NVMLError, AttributeError):
        return None


def measure(uuid: str, *, wsl: bool) -> dict[str, Any]:
    cuda = Cuda()
    answer: dict[str, Any] = {}
    size = 64 * MIB if wsl else 256 * MIB
    copy_rate(cuda, size, chunk=size, seconds=WARM_UP_S)
    with LinkSampler(uuid) as sampler:
        rates = [copy_rate(cuda, size, chunk=size, seconds=RUN_S) for _ in range(RUNS)]
    answer["bytes_per_s"] = statistics.median(rates)
    answer["generation"], answer["width"] = sampler.generation, sampler.width
    answer["replays"], answer["throttle"] = sampler.replays, sampler.throttle
    answer["small_bytes_per_s"] = copy_rate(cuda, size, chunk=MIB, seconds=WARM_UP_S)
    if wsl:
        answer["pin_limit_bytes"] = _pin_wall(cuda)
    return answer


def _pin_wall(cuda: Cuda) -> int | None:
    held: list[ctypes.c_void_p] = []

    def pin(size: int) -> bool:
        try:
            held.append(cuda.pin(size))
        except CudaError:
            return False
        return True

    try:
        return pin_budget(pin, step=PIN_STEP_BYTES, most=PIN_MOST_BYTES)
    finally:
        for memory in held:
            cuda.call("cuMemFreeHost", memory)


def main() -> None:
    started = time.perf_counter()
    answer: dict[str, Any]
    try:
        answer = measure(sys.argv[1], wsl="--wsl" in sys.argv)
    except (CudaError, OSError) as err:
        answer = {"problem": str(err)}
    answer["seconds"] = round(time.perf_counter() - started, 2)
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
