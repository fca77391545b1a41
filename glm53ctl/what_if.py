"""One machine with parts changed, for `plan --what-if "ram=256GiB,pcie=5x16"`. Pure.

Measured rates that a change makes stale are forgotten, so that the prediction falls back to the new
part's limits. A card that is not here comes with the software that it needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from glm53ctl import drivers
from glm53ctl.cards import assumed_gpu, named_card
from glm53ctl.env import GIB, nearest
from glm53ctl.errors import UsageError
from glm53ctl.hardware import GB_PER_LANE, Driver, DriverState, Gpu, Hardware, Link

EXAMPLE = "gpu=RTX3090,ram=256GiB,vram=32GiB,pcie=5x16,cores=24,dram=200GB/s"
WIDTHS = (1, 2, 4, 8, 16)  # lanes of a slot
# The most of each that is still a machine; less than the least cannot be planned with.
MOST_BYTES = 64 << 40
MOST_CORES = 1024
MOST_GB_PER_S = 100_000.0
GPU_SOFTWARE = frozenset({"torch", "exllamav3", "fastapi"})


def changed(hardware: Hardware, text: str) -> Hardware:
    """The hardware with the changes in `text`. Raises UsageError naming what it cannot read."""
    wanted: dict[str, str] = {}
    for part in text.split(","):
        key, _, value = (item.strip() for item in part.partition("="))
        if key not in _CHANGES:
            close = nearest(key, set(_CHANGES))
            raise UsageError(
                f"--what-if {_short(key)} is not a part that can be changed",
                hint=f"did you mean {close!r}?" if close else f"for example {EXAMPLE}",
            )
        if key in wanted:
            raise UsageError(f"--what-if changes {key} twice", hint=f"for example {EXAMPLE}")
        wanted[key] = value
    for key, change in _CHANGES.items():  # the card first, so that others change it
        if key in wanted:
            hardware = change(hardware, wanted[key])
    return hardware


def _gpu(hardware: Hardware, value: str) -> Hardware:
    """That card in place of those that are here, in a slot of its width, with a driver that is new enough."""
    driver = Driver(
        DriverState.OK,
        drivers.version_text(drivers.minimum_driver()),
        drivers.ENGINE_CUDA,
        "assumed by --what-if",
    )
    return replace(
        _without_link_rate(hardware),
        gpus=(assumed_gpu(named_card(value)),),
        driver=driver,
        engines=hardware.engines | GPU_SOFTWARE,
    )


def _without_link_rate(hardware: Hardware) -> Hardware:
    measured = replace(
        hardware.measured,
        h2d_bytes_per_s=None,
        h2d_generation=None,
        h2d_width=None,
        h2d_replays=None,
        h2d_throttle=None,
    )
    return replace(hardware, measured=measured)


def _ram(hardware: Hardware, value: str) -> Hardware:
    """More or less memory; what is in use stays in use, and a cgroup limit stays."""
    total = _size(value)
    used = hardware.ram.total_bytes - hardware.ram.available_bytes
    left = max(0, total - used)
    owner = f"--what-if, less the {used / GIB:.1f} GiB in use here"
    ram = replace(hardware.ram, total_bytes=total, available_bytes=left, owner=owner)
    return replace(hardware, ram=ram)


def _vram(hardware: Hardware, value: str) -> Hardware:
    total = _size(value)

    def grown(gpu: Gpu) -> Gpu:
        used = (gpu.total_bytes or 0) - (gpu.free_bytes or 0)
        return replace(gpu, total_bytes=total, free_bytes=max(0, total - used))

    return replace(hardware, gpus=tuple(grown(gpu) for gpu in _gpus(hardware)))


def _pcie(hardware: Hardware, value: str) -> Hardware:
    found = re.fullmatch(r"([0-9])x([0-9]{1,2})", value)
    generation, width = (int(found[1]), int(found[2])) if found else (0, 0)
    if generation not in GB_PER_LANE or width not in WIDTHS:
        raise UsageError(f"--what-if pcie={_short(value)}: a generation and a width, as in 5x16")
    link = Link(generation, width, generation, width)
    gpus = tuple(replace(gpu, link=link) for gpu in _gpus(hardware))
    return replace(_without_link_rate(hardware), gpus=gpus)


def _cores(hardware: Hardware, value: str) -> Hardware:
    count = _number(value, "")
    if count is None or not 1 <= count <= MOST_CORES or count != int(count):
        raise UsageError(
            f"--what-if cores={_short(value)}: a number of physical cores up to {MOST_CORES}, as in 24"
        )
    cpus = tuple(range(int(count)))
    cpu = replace(hardware.cpu, online=cpus, allowed=cpus, performance=cpus, quota_cpus=None)
    measured = replace(hardware.measured, tier_bytes_per_s=None)
    return replace(hardware, cpu=cpu, measured=measured)


def _dram(hardware: Hardware, value: str) -> Hardware:
    rate = _number(value, "GB/s")
    if rate is None or not 0.1 <= rate <= MOST_GB_PER_S:
        raise UsageError(f"--what-if dram={_short(value)}: a rate, as in 200GB/s")
    measured = replace(hardware.measured, ram_read_bytes_per_s=rate * 1e9)
    return replace(hardware, measured=measured)


_CHANGES: dict[str, Callable[[Hardware, str], Hardware]] = {
    "gpu": _gpu,
    "ram": _ram,
    "vram": _vram,
    "pcie": _pcie,
    "cores": _cores,
    "dram": _dram,
}


def _gpus(hardware: Hardware) -> tuple[Gpu, ...]:
    if not hardware.gpus:
        raise UsageError(
            "--what-if needs a GPU for this change, and this machine has none",
            hint="name one as well: gpu=RTX3090",
        )
    return hardware.gpus


def _size(value: str) -> int:
    binary, decimal = _number(value, "GiB"), _number(value, "GB")
    size = (binary or 0.0) * GIB + (decimal or 0.0) * 1e9
    if not 1 <= size <= MOST_BYTES:
        raise UsageError(
            f"--what-if {_short(value)} is not a size up to {MOST_BYTES // GIB} GiB, as in 256GiB"
        )
    return int(size)


def _number(value: str, unit: str) -> float | None:
    """The number before a unit; None for anything else."""
    number = value.removesuffix(unit).rstrip()
    plain = value.endswith(unit) and re.fullmatch(r"[0-9]+(\.[0-9]+)?", number)
    return float(number) if plain else None


def _short(value: str) -> str:
    return repr(value if len(value) <= 40 else f"{value[:40]}...")
