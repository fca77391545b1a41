"""What limits pinned memory on this host, in words: the limit that was found and the way out."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Limits of this process in bytes; None where there is none or it cannot be read.

    address_left: what may still be mapped.
    """

    address_left: int | None = None
    memlock: int | None = None
    cgroup_left: int | None = None
    available: int | None = None
    wsl: bool = False


def read_limits(root: Path = Path("/")) -> HostLimits:
    """The limits in force now. `root` replaces / for /proc and /sys."""
    return HostLimits(
        address_left=_address_left(root),
        memlock=_soft(resource.RLIMIT_MEMLOCK),
        cgroup_left=_cgroup_left(root),
        available=_available(root),
        wsl="microsoft" in _text(root / "proc/sys/kernel/osrelease").lower(),
    )


def explain(limits: HostLimits, pinned_bytes: int, wanted_bytes: int) -> tuple[str, str]:
    """(limit, fix): the first limit that stands below what was wanted. Pure."""
    left = wanted_bytes - pinned_bytes
    if not pinned_bytes and limits.address_left is not None and limits.address_left < wanted_bytes:
        return (
            f"the address space limit of this process leaves {_gib(limits.address_left)}",
            "lift it: `ulimit -v unlimited` (systemd: LimitAS=infinity)",
        )
    if limits.cgroup_left is not None and limits.cgroup_left < left:
        return (
            f"the container or cgroup has {_gib(limits.cgroup_left)} left",
            "raise its limit: --memory of the container, MemoryMax= of the unit",
        )
    if limits.available is not None and limits.available < left:
        return (
            f"{_gib(limits.available)} of host RAM are available",
            "end other programs, or see what needs how much: `glm53ctl plan`",
        )
    if limits.wsl:
        return (
            "WSL2 lets a part of its memory be pinned only",
            "raise memory= in .wslconfig, or run on Linux itself",
        )
    if limits.memlock is not None and limits.memlock < wanted_bytes:
        return (
            f"locked memory is limited to {_gib(limits.memlock)}",
            "lift it: `ulimit -l unlimited` (systemd: LimitMEMLOCK=infinity, docker: --ulimit memlock=-1)",
        )
    return (
        "no limit of this process stands below it, so the driver refused",
        "end other programs that pin memory, or restart the machine; `glm53ctl doctor` measures what can be pinned",
    )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.2f} GiB" if size_bytes >= GIB // 8 else f"{size_bytes >> 10} KiB"


def _soft(which: int) -> int | None:
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _address_left(root: Path) -> int | None:
    limit, used = _soft(resource.RLIMIT_AS), _text(root / "proc/self/statm").split()
    if limit is None or not used:
        return None
    return max(0, limit - int(used[0]) * resource.getpagesize())


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _available(root: Path) -> int | None:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_left(root: Path) -> int | None:
    """What the tightest cgroup above this process (version 2) leaves."""
    own = next((x[3:] for x in _text(root / "proc/self/cgroup").splitlines() if x[:3] == "0::"), "")
    top = root / "sys/fs/cgroup"
    folder = top / own.strip("/")
    left: list[int] = []
    for place in (folder, *folder.parents):
        limit, used = _number(place / "memory.max"), _number(place / "memory.current")
        if limit is not None and used is not None:
            left.append(max(0, limit - used))
        if place == top:
            break
    return min(left, default=None)
