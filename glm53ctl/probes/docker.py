"""Docker, the NVIDIA toolkit and CDI: what a container would need, as far as it can be read."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, cast

from glm53ctl.probes.system import System

CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi", "/run/cdi")
GPU_KIND = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Docker:
    """`problem` is set when the daemon does not answer; the other fields are then unknown."""

    problem: str | None = None
    version: str | None = None
    nvidia_runtime: bool = False
    rootless: bool = False
    selinux: bool = False
    desktop: bool = False
    cgroup_driver: str | None = None
    root_dir: str | None = None


def probe(system: System) -> Docker:
    """Ask the daemon once. "missing", "permission", "no daemon" and "no answer" are problems."""
    result = system.run(["docker", "info", "--format", "{{json .}}"], deadline_s=1.2)
    if result.problem is not None:
        return Docker("missing" if result.problem == "missing" else "no answer")
    try:
        found = cast("dict[str, Any]", json.loads(result.out or "{}"))
    except ValueError:
        found = {}
    errors = " ".join([*(found.get("ServerErrors") or []), result.err])
    if "permission denied" in errors:
        return Docker("permission")
    if not found.get("ServerVersion"):
        return Docker("no daemon")
    options = " ".join(found.get("SecurityOptions") or [])
    return Docker(
        version=found["ServerVersion"],
        nvidia_runtime="nvidia" in (found.get("Runtimes") or {}),
        rootless="name=rootless" in options,
        selinux="name=selinux" in options,
        desktop="Docker Desktop" in str(found.get("OperatingSystem")),
        cgroup_driver=found.get("CgroupDriver"),
        root_dir=found.get("DockerRootDir"),
    )


def toolkit_version(system: System) -> str | None:
    """Version of nvidia-ctk, None when the toolkit is not installed."""
    result = system.run(["nvidia-ctk", "--version"], deadline_s=1.0)
    found = re.search(r"\d+\.\d+\.\d+", result.out)
    return found[0] if result.ok and found else None


def cdi_devices(system: System) -> tuple[str, ...]:
    """Names that CDI specifications of the kind nvidia.com/gpu define, over all folders and files.

    Other kinds may define a device "all" as well; it is not a GPU.
    """
    found: set[str] = set()
    for folder in CDI_FOLDERS:
        for name in system.names(folder):
            if name.endswith((".yaml", ".yml", ".json")):
                found.update(_names(system.read(f"{folder}/{name}") or ""))
    return tuple(sorted(found))


def cdi_driver(system: System) -> str | None:
    """The driver version that the GPU specification was made for: its libcuda.so.<version>."""
    for folder in CDI_FOLDERS:
        for name in system.names(folder):
            text = system.read(f"{folder}/{name}") or ""
            version = re.search(r"libcuda\.so\.(\d+\.[0-9.]*\d)", text)
            if version and _names(text):
                return version[1]
    return None


def _names(text: str) -> set[str]:
    """Device names of one specification, if it is of our kind.

    The specifications are generated and flat; two patterns read both YAML and JSON.
    """
    kind = re.search(r'^\s*"?kind"?:\s*"?([\w./-]+)"?', text, re.MULTILINE)
    if kind is None:
        kind = re.search(r'"kind":\s*"([\w./-]+)"', text)
    if kind is None or kind[1] != GPU_KIND:
        return set()
    return set(
        re.findall(r'(?:^|[\s{,-])"?name"?:\s*"?(all|\d+(?::\d+)?|GPU-[\w-]+|MIG-[\w-]+)"?', text)
    )
