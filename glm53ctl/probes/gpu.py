"""GPUs: NVML first, nvidia-smi where NVML cannot be loaded, sysfs for the path to the card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from glm53ctl.hardware import Driver, DriverState, Evidence, Gpu, GpuProcess
from glm53ctl.probes import pcie, smi
from glm53ctl.probes.system import System

NVIDIA_VENDOR = "0x10de"


def probe(system: System) -> tuple[Driver, tuple[Gpu, ...], tuple[tuple[str, str], ...]]:
    """(driver, GPUs, unknown facts). Never raises; a driver that hangs is a state of the driver."""
    answer = system.nvml()
    driver = _driver(system, answer)
    if driver.state in {DriverState.NO_LIBRARY, DriverState.ERROR, DriverState.ABSENT}:
        by_tool = smi.probe(system)
        if by_tool is not None:
            return by_tool
        if driver.state is DriverState.NO_LIBRARY and not nvidia_devices(system):
            driver = Driver(DriverState.ABSENT, detail="no NVIDIA device on this machine")
    raw = cast("list[dict[str, Any]]", answer.get("gpus", []))
    gpus = tuple(_gpu(system, item) for item in raw if item.get("uuid"))
    return driver, gpus, tuple(_unknown(raw))


def nvidia_devices(system: System) -> tuple[str, ...]:
    """PCI addresses of NVIDIA display devices, with or without a driver."""
    base = "/sys/bus/pci/devices"
    return tuple(
        name
        for name in system.names(base)
        if (system.read(f"{base}/{name}/vendor") or "").strip() == NVIDIA_VENDOR
        and (system.read(f"{base}/{name}/class") or "").startswith("0x03")
    )


def sysfs_address(bus_id: str | None) -> str | None:
    """NVML's "00000000:01:00.0" as sysfs's "0000:01:00.0"."""
    if not bus_id or ":" not in bus_id:
        return None
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def cuda_version(number: object) -> tuple[int, int] | None:
    """13010 as (13, 1)."""
    return (number // 1000, number % 1000 // 10) if isinstance(number, int) else None


def _driver(system: System, answer: Mapping[str, Any]) -> Driver:
    evidence = (Evidence("nvmlInit", str(answer.get("detail") or "ok")),)
    if problem := answer.get("problem"):
        running = (system.read("/proc/driver/nvidia/version") or "").splitlines()[:1]
        detail = str(answer.get("detail", ""))
        if running:
            detail += f" (loaded module: {running[0].strip()})"
        return Driver(DriverState(problem), detail=detail, evidence=evidence)
    gpus = cast("list[dict[str, Any]]", answer.get("gpus", []))
    return Driver(
        DriverState.OK if gpus else DriverState.ABSENT,
        version=answer.get("driver"),
        cuda=cuda_version(answer.get("cuda")),
        detail="" if gpus else "the driver is loaded but sees no GPU",
        stale_binding=any(gpu.get("name_is_bytes") for gpu in gpus),
        evidence=evidence,
    )


def _gpu(system: System, raw: Mapping[str, Any]) -> Gpu:
    memory = cast("dict[str, int]", raw.get("memory") or {})
    address = sysfs_address(raw.get("bus_id"))
    capability = raw.get("capability")
    mig = raw.get("mig") or [0, 0]
    refused = cast("dict[str, str]", raw.get("problems", {}))
    return Gpu(
        index=int(raw["index"]),
        uuid=str(raw["uuid"]),
        name=str(raw.get("name") or "NVIDIA GPU"),
        address=address,
        capability=(int(capability[0]), int(capability[1])) if capability else None,
        total_bytes=memory.get("total"),
        free_bytes=memory.get("free"),
        reserved_bytes=memory.get("reserved"),
        unified_memory=not memory and refused.get("memory") == "NotSupported",
        mig_enabled=bool(mig[0]),
        parent_uuid=raw.get("parent_uuid"),
        display_active=_flag(raw.get("display_active")),
        persistence=_flag(raw.get("persistence")),
        power_limit_w=_watts(raw.get("power_limit_mw")),
        power_default_w=_watts(raw.get("power_default_mw")),
        throttle_reasons=raw.get("throttle"),
        bar1_bytes=raw.get("bar1_total"),
        numa_node=_numa_node(system, address),
        link=pcie.link(system, address, raw.get("link") or {}),
        processes=tuple(_process(system, item) for item in raw.get("processes", [])),
        evidence=(Evidence("NVML memory info", str(memory or refused.get("memory"))),),
    )


def _process(system: System, raw: Mapping[str, Any]) -> GpuProcess:
    name = (system.read(f"/proc/{raw['pid']}/comm") or "").strip() or None
    return GpuProcess(int(raw["pid"]), str(raw["kind"]), raw.get("used"), name)


def _unknown(gpus: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for gpu in gpus:
        for fact, reason in gpu.get("problems", {}).items():
            yield f"gpu {gpu['index']} {fact}", str(reason)


def _numa_node(system: System, address: str | None) -> int | None:
    """The NUMA node of a device; -1 in sysfs means unknown."""
    text = (system.read(f"/sys/bus/pci/devices/{address}/numa_node") or "").strip()
    return int(text) if address and text.isdigit() else None


def _flag(value: object) -> bool | None:
    return None if value is None else bool(value)


def _watts(milliwatts: object) -> float | None:
    return milliwatts / 1000 if isinstance(milliwatts, int) else None
