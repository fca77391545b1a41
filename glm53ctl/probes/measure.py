"""Measured rates: link, memory, CPU tier and disk, each in a child process with a deadline.

One after the other, because they share the same DRAM. What is not measurable stays None, with the
reason among the unknown facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from glm53ctl.hardware import Cpu, DriverState, Gpu, Hardware, Measured
from glm53ctl.probes.system import System

H2D_DEADLINE_S, RAM_DEADLINE_S, TIER_DEADLINE_S, DISK_DEADLINE_S = 8.0, 6.0, 8.0, 4.0
H2D_FREE_BYTES = 3 << 29  # 1.5 GiB: a CUDA context must not push out a desktop
RAM_FREE_BYTES = 4 << 30
DISK_BYTES = 256 << 20  # a smaller file says nothing about a disk
SIGNALS = {-4: "SIGILL", -7: "SIGBUS", -11: "SIGSEGV"}


def measure(
    system: System, hardware: Hardware, gpu: Gpu | None, shard: Path | None = None
) -> Hardware:
    """The hardware with its measured rates and the outcome of the kernels' self-test."""
    missing: list[tuple[str, str]] = []
    rates = Measured()
    if gpu is not None and hardware.driver.state is DriverState.OK:
        rates = _link(system, hardware, gpu, rates, missing)
    rates = _memory(system, hardware, rates, missing)
    rates, cpu = _tier(system, hardware.cpu, rates, missing)
    if shard is not None:
        answer = system.measure("disk", str(shard), deadline_s=DISK_DEADLINE_S)
        rates = replace(rates, disk_read_bytes_per_s=_rate(answer, "disk rate", missing))
    unknown = (*hardware.unknown, *missing)
    return replace(hardware, measured=rates, cpu=cpu, unknown=unknown)


def _link(
    system: System, hardware: Hardware, gpu: Gpu, rates: Measured, missing: list[tuple[str, str]]
) -> Measured:
    if (gpu.free_bytes or 0) < H2D_FREE_BYTES:
        missing.append(("link rate", "less than 1.5 GiB of VRAM is free"))
        return rates
    arguments = [gpu.uuid, *(["--wsl"] if hardware.host.wsl else [])]
    answer = system.measure("h2d", *arguments, deadline_s=H2D_DEADLINE_S, gpu=gpu.uuid)
    return replace(
        rates,
        h2d_bytes_per_s=_rate(answer, "link rate", missing),
        h2d_generation=answer.get("generation"),
        h2d_width=answer.get("width"),
        h2d_replays=answer.get("replays"),
        h2d_throttle=answer.get("throttle"),
        pin_limit_bytes=answer.get("pin_limit_bytes"),
    )


def _memory(
    system: System, hardware: Hardware, rates: Measured, missing: list[tuple[str, str]]
) -> Measured:
    if hardware.ram.usable_bytes < RAM_FREE_BYTES:
        missing.append(("RAM rate", "less than 4 GiB of RAM is usable"))
        return rates
    answer = system.measure("ram", _cpus(hardware.cpu), deadline_s=RAM_DEADLINE_S)
    return replace(rates, ram_read_bytes_per_s=_rate(answer, "RAM rate", missing))


def _tier(
    system: System, cpu: Cpu, rates: Measured, missing: list[tuple[str, str]]
) -> tuple[Measured, Cpu]:
    answer = system.measure("tier", _cpus(cpu), deadline_s=TIER_DEADLINE_S)
    rate = _rate(answer, "CPU tier rate", missing)
    killed = SIGNALS.get(int(answer.get("code", 0)))
    outcome = "ok" if rate else killed
    return replace(rates, tier_bytes_per_s=rate), replace(cpu, self_test=outcome)


def _cpus(cpu: Cpu) -> str:
    return ",".join(str(number) for number in cpu.performance[: cpu.usable_cores])


def _rate(answer: Mapping[str, Any], name: str, missing: list[tuple[str, str]]) -> float | None:
    rate = answer.get("bytes_per_s")
    if rate is None:
        missing.append((name, str(answer.get("problem", "not measured"))))
        return None
    return float(rate)
