"""NVML asked in a process of its own: prints one JSON object and ends.

A driver call can hang in the kernel; then the parent abandons this process and goes on. Every query
that the driver refuses becomes an entry of "problems", never an exception.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

ASKING = "asking the driver"
PROBLEMS = {
    "NVMLError_LibraryNotFound": "no_library",
    "NVMLError_DriverNotLoaded": "not_loaded",
    "NVMLError_LibRmVersionMismatch": "mismatch",
    "NVMLError_NoPermission": "no_access",
    "NVMLError_Unknown": "no_access",
    "NVMLError_GpuIsLost": "lost",
}


def snapshot(nvml: Any) -> dict[str, Any]:
    """Everything asked of NVML, as JSON values. `nvml` is the pynvml module, or a stand-in."""
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as err:
        return {"problem": PROBLEMS.get(type(err).__name__, "error"), "detail": str(err)}
    found: dict[str, Any] = {"binding": _binding_version()}
    ask = _Asker(nvml, found.setdefault("problems", {}))
    found["driver"] = _text(ask("driver", nvml.nvmlSystemGetDriverVersion))
    found["cuda"] = ask("cuda", nvml.nvmlSystemGetCudaDriverVersion_v2)
    gpus: list[dict[str, Any]] = []
    found["gpus"] = gpus
    for index in range(count):
        handle = ask(f"gpu {index}", lambda i=index: nvml.nvmlDeviceGetHandleByIndex(i))
        if handle is not None:
            gpus.append(_device(nvml, handle, index))
            gpus.extend(_slices(nvml, handle, index))
    return found


class _Asker:
    """Calls that may be refused: None for an answer, the reason kept by name."""

    def __init__(self, nvml: Any, problems: dict[str, str]) -> None:
        self._error = nvml.NVMLError
        self._problems = problems

    def __call__(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._error as err:
            self._problems[name] = type(err).__name__.removeprefix("NVMLError_") or str(err)
        except (AttributeError, TypeError) as err:  # an older binding or library lacks the function
            self._problems[name] = str(err)
        return None


def _device(nvml: Any, handle: Any, index: int) -> dict[str, Any]:
    gpu: dict[str, Any] = {"index": index, "problems": {}}
    ask = _Asker(nvml, gpu["problems"])
    name = ask("name", lambda: nvml.nvmlDeviceGetName(handle))
    gpu["name_is_bytes"] = isinstance(name, bytes)
    gpu["name"] = _text(name)
    gpu["uuid"] = _text(ask("uuid", lambda: nvml.nvmlDeviceGetUUID(handle)))
    gpu["bus_id"] = _text(ask("bus_id", lambda: nvml.nvmlDeviceGetPciInfo(handle).busId))
    gpu["capability"] = ask("capability", lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    gpu["memory"] = _memory(nvml, ask, handle)
    gpu["mig"] = ask("mig", lambda: nvml.nvmlDeviceGetMigMode(handle))
    gpu["persistence"] = ask("persistence", lambda: nvml.nvmlDeviceGetPersistenceMode(handle))
    gpu["display_active"] = ask("display", lambda: nvml.nvmlDeviceGetDisplayActive(handle))
    gpu["power_limit_mw"] = ask("power", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    gpu["power_default_mw"] = ask(
        "power default", lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)
    )
    gpu["power_mw"] = ask("power now", lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    gpu["temperature_c"] = ask("temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, 0))
    gpu["throttle"] = ask(
        "throttle", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    )
    gpu["bar1_total"] = ask("bar1", lambda: nvml.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Total)
    gpu["link"] = {
        "generation": ask("link", lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
        "width": ask("link width", lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        "max_generation": ask("link max", lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
        "max_width": ask("link max width", lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
    }
    gpu["processes"] = _processes(nvml, ask, handle)
    return gpu


def _memory(nvml: Any, ask: _Asker, handle: Any) -> dict[str, int] | None:
    info = ask("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2))
    if info is None:  # drivers before R510
        info = ask("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    if info is None:
        return None
    return {
        "total": int(info.total),
        "free": int(info.free),
        "used": int(info.used),
        "reserved": int(getattr(info, "reserved", 0)),
    }


def _processes(nvml: Any, ask: _Asker, handle: Any) -> list[dict[str, Any]]:
    """Holders of VRAM; a pid may be in both lists."""
    found: dict[int, dict[str, Any]] = {}
    for kind, call in (
        ("compute", "nvmlDeviceGetComputeRunningProcesses"),
        ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
    ):
        holders: list[Any] = ask(kind, lambda call=call: getattr(nvml, call)(handle)) or []
        for item in holders:
            entry = found.setdefault(item.pid, {"kinds": [], "used": None})
            entry["kinds"].append(kind)
            entry["used"] = item.usedGpuMemory
    return [
        {"pid": pid, "kind": "+".join(entry["kinds"]), "used": entry["used"]}
        for pid, entry in found.items()
    ]


def _slices(nvml: Any, parent: Any, index: int) -> list[dict[str, Any]]:
    """MIG slices of a device, if it has any."""
    ask = _Asker(nvml, {})
    count = ask("slices", lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(parent)) or 0
    found: list[dict[str, Any]] = []
    for number in range(count):
        handle = ask("slice", lambda n=number: nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, n))
        if handle is not None:
            found.append(
                {
                    "index": index,
                    "uuid": _text(ask("uuid", lambda h=handle: nvml.nvmlDeviceGetUUID(h))),
                    "name": _text(ask("name", lambda h=handle: nvml.nvmlDeviceGetName(h))),
                    "memory": _memory(nvml, ask, handle),
                    "parent_uuid": _text(ask("parent", lambda: nvml.nvmlDeviceGetUUID(parent))),
                    "problems": {},
                }
            )
    return found


def _binding_version() -> str | None:
    """Version of nvidia-ml-py; None when another package provides `pynvml`."""
    try:
        return version("nvidia-ml-py")
    except PackageNotFoundError:
        return None


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def main() -> None:
    try:
        import pynvml  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as err:
        answer: dict[str, Any] = {"problem": "error", "detail": f"nvidia-ml-py: {err}"}
    else:
        sys.stderr.write(
            ASKING + "\n"
        )  # tells a slow start of this process from a driver that hangs
        sys.stderr.flush()
        answer = snapshot(pynvml)
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
