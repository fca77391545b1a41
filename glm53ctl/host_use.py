"""What a running instance uses of its machine: RAM of its processes, and VRAM of its GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from glm53ctl.env import Environ
from glm53ctl.plan import Plan
from glm53ctl.render import gib
from glm53ctl.supervisor.state import session_members
from glm53ctl.words import counted


@dataclass(frozen=True, slots=True)
class HostUse:
    """Bytes now. GPU parts are None without a GPU plan, or when NVML does not tell."""

    ram_ours_bytes: int
    ram_available_bytes: int
    threads: int
    gpu_name: str | None = None
    vram_used_bytes: int | None = None
    vram_total_bytes: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None


def read(record: dict[str, Any], plan: Plan, environ: Environ) -> HostUse | None:
    """Measure a serving instance; None when it has no child now."""
    import psutil

    if record["child"] is None:
        return None
    ours_bytes = threads = 0
    for pid in session_members(record["child"]["pid"]):
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            ours_bytes += process.memory_info().rss
            threads += process.num_threads()
    gpu = _gpu(plan, environ)
    memory: dict[str, int] = gpu.get("memory") or {}
    return HostUse(
        ours_bytes,
        psutil.virtual_memory().available,
        threads,
        gpu.get("name"),
        memory.get("used"),
        memory.get("total"),
        gpu.get("temperature_c"),
        _watts(gpu.get("power_mw")),
        _watts(gpu.get("power_limit_mw")),
    )


def _watts(milliwatts: float | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _gpu(plan: Plan, environ: Environ) -> dict[str, Any]:
    if plan.gpu is None:
        return {}
    from glm53ctl.probes.system import this_system

    gpus: list[dict[str, Any]] = this_system(environ).nvml().get("gpus") or []
    found = [gpu for gpu in gpus if gpu.get("uuid") == plan.gpu.uuid]
    return found[0] if found else {}


def lines(use: HostUse) -> Iterator[str]:
    """What `status` shows of it."""
    yield (
        f"  RAM      {gib(use.ram_ours_bytes)} ours in {counted(use.threads, 'thread')}, "
        f"{gib(use.ram_available_bytes)} available"
    )
    if use.vram_used_bytes is not None and use.vram_total_bytes is not None:
        vram = f"{gib(use.vram_used_bytes)} of {gib(use.vram_total_bytes)} used"
        yield f"  VRAM     {vram}, {use.gpu_name}"
    if use.temperature_c is not None:
        limit = f" of {use.power_limit_w:.0f}" if use.power_limit_w else ""
        power = f", {use.power_w:.0f}{limit} W" if use.power_w is not None else ""
        yield f"  GPU      {use.temperature_c} °C{power}"
