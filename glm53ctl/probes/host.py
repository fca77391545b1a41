"""The host around us: distribution, WSL, containers, and the limits a server would start with."""

from __future__ import annotations

from glm53ctl.hardware import Host
from glm53ctl.probes.system import System

CAP_IPC_LOCK = 14


def probe(system: System) -> Host:
    soft, hard = memlock(system)
    shm = system.disk_space(system.path("/dev/shm"))
    return Host(
        system=_distribution(system),
        kernel=(system.read("/proc/sys/kernel/osrelease") or "").strip() or "unknown kernel",
        wsl=wsl(system),
        container=container(system),
        boot_id=(system.read("/proc/sys/kernel/random/boot_id") or "").strip() or None,
        memlock_soft_bytes=soft,
        memlock_hard_bytes=hard,
        ipc_lock=_capability(system, CAP_IPC_LOCK),
        shm_total_bytes=shm.total_bytes if shm else None,
        max_map_count=_int(system.read("/proc/sys/vm/max_map_count")),
    )


def wsl(system: System) -> int | None:
    """1 or 2 under the Windows Subsystem for Linux. WSL 1 has no /dev/dxg and runs no GPU."""
    release = (system.read("/proc/sys/kernel/osrelease") or "").lower()
    if system.exists("/dev/dxg") or system.exists("/run/WSL") or "wsl2" in release:
        return 2
    return 1 if "microsoft" in release else None


def container(system: System) -> str | None:
    """The kind of container around this process, None on bare metal or in a plain VM."""
    if system.exists("/.dockerenv"):
        return "docker"
    if system.exists("/run/.containerenv"):
        return "podman"
    if "lxcfs" in (system.read("/proc/self/mountinfo") or ""):
        return "lxc"
    named = (system.read("/run/systemd/container") or "").strip()
    return named or None


def memlock(system: System, pid: str = "self") -> tuple[int | None, int | None]:
    """(soft, hard) locked-memory limits of a process in bytes; None is unlimited."""
    for line in (system.read(f"/proc/{pid}/limits") or "").splitlines():
        if line.startswith("Max locked memory"):
            soft, hard = line.removeprefix("Max locked memory").split()[:2]
            return _int(soft), _int(hard)
    return None, None


def _distribution(system: System) -> str:
    for line in (system.read("/etc/os-release") or "").splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip().strip('"')
    return "Linux"


def _capability(system: System, bit: int) -> bool:
    for line in (system.read("/proc/self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> bit & 1)
    return False


def _int(text: str | None) -> int | None:
    stripped = (text or "").strip()
    return int(stripped) if stripped.isdigit() else None
