"""One machine with parts changed, for `plan --what-if "ram=256GiB,pcie=5x16"`. Pure.

Measured rates that a change makes stale are forgotten, so that the prediction falls back to the new
part's limits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from glm53ctl.env import GIB, nearest
from glm53ctl.errors import UsageError
from glm53ctl.hardware import GB_PER_LANE, Gpu, Hardware, Link

EXAMPLE = "ram=256GiB,vram=32GiB,pcie=5x16,cores=24,dram=200GB/s"


def changed(hardware: Hardware, text: str) -> Hardware:
    """The hardware with the changes in `text`. Raises UsageError naming what it cannot read."""
    for part in text.split(","):
        key, _, value = (item.strip() for item in part.partition("="))
        if key not in _CHANGES:
            close = nearest(key, set(_CHANGES))
            raise UsageError(
                f"--what-if {key!r} is not a part that can be changed",
                hint=f"did you mean {close!r}?" if close else f"for example {EXAMPLE}",
            )
        hardware = _CHANGES[key](hardware, value)
    return hardware


def _ram(hardware: Hardware, value: str) -> Hardware:
    """More or less memory; what is in use stays in use, and a cgroup limit stays."""
    total = _size(value)
    used = hardware.ram.total_bytes - hardware.ram.available_bytes
    ram = replace(hardware.ram, total_bytes=total, available_bytes=max(0, total - used))
    return replace(hardware, ram=ram)


def _vram(hardware: Hardware, value: str) -> Hardware:
    total = _size(value)

    def grown(gpu: Gpu) -> Gpu:
        used = (gpu.total_bytes or 0) - (gpu.free_bytes or 0)
        return replace(gpu, total_bytes=total, free_bytes=max(0, total - used))

    return replace(hardware, gpus=tuple(grown(gpu) for gpu in _gpus(hardware)))


def _pcie(hardware: Hardware, value: str) -> Hardware:
    found = re.fullmatch(r"(\d)x(\d+)", value)
    if not found or int(found[1]) not in GB_PER_LANE:
        raise UsageError(f"--what-if pcie={value!r}: a generation and a width, as in 5x16")
    generation, width = int(found[1]), int(found[2])
    link = Link(generation, width, generation, width)
    gpus = tuple(replace(gpu, link=link) for gpu in _gpus(hardware))
    measured = replace(hardware.measured, h2d_bytes_per_s=None, h2d_generation=None, h2d_width=None)
    return replace(hardware, gpus=gpus, measured=measured)


def _cores(hardware: Hardware, value: str) -> Hardware:
    if not value.isdigit() or int(value) < 1:
        raise UsageError(f"--what-if cores={value!r}: a number of physical cores, as in 24")
    cpus = tuple(range(int(value)))
    cpu = replace(hardware.cpu, online=cpus, allowed=cpus, performance=cpus, quota_cpus=None)
    measured = replace(hardware.measured, tier_bytes_per_s=None)
    return replace(hardware, cpu=cpu, measured=measured)


def _dram(hardware: Hardware, value: str) -> Hardware:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*GB/s", value)
    if not found:
        raise UsageError(f"--what-if dram={value!r}: a rate, as in 200GB/s")
    measured = replace(hardware.measured, ram_read_bytes_per_s=float(found[1]) * 1e9)
    return replace(hardware, measured=measured)


_CHANGES: dict[str, Callable[[Hardware, str], Hardware]] = {
    "ram": _ram,
    "vram": _vram,
    "pcie": _pcie,
    "cores": _cores,
    "dram": _dram,
}


def _gpus(hardware: Hardware) -> tuple[Gpu, ...]:
    if not hardware.gpus:
        raise UsageError("--what-if needs a GPU for this change, and this machine has none")
    return hardware.gpus


def _size(value: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(GiB|GB)", value)
    if not found:
        raise UsageError(f"--what-if {value!r} is not a size, as in 256GiB")
    return int(float(found[1]) * (GIB if found[2] == "GiB" else 10**9))
