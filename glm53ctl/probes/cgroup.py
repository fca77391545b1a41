"""Control groups, v1, v2 and hybrid: which levels limit this process, and what they still allow.

Every ancestor counts, not only the innermost level. A level without a limit is skipped, never
subtracted from; the reclaimable page cache of a limited level counts as free.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from glm53ctl.hardware import MemoryLimit
from glm53ctl.probes.system import System

V1_ROOTS = "/sys/fs/cgroup/{controller}"
V2_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")


@dataclass(frozen=True, slots=True)
class Level:
    """One folder of a hierarchy: `folder` is where its files are, `path` its name to a user."""

    version: int
    folder: str
    path: str


def levels(system: System, controller: str) -> tuple[Level, ...]:
    """Folders of this process for a controller, innermost first.

    On a hybrid system the v1 hierarchy wins where it has the controller. In a cgroup namespace the
    named folder may not exist; then the mount's root stands for it.
    """
    v2_path = None
    for line in (system.read("/proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(","):
            root = V1_ROOTS.format(controller=controller)
            return tuple(_ancestors(system, 1, root, path))
        if number == "0" and not names:
            v2_path = path
    for root in V2_ROOTS:
        if v2_path is not None and system.exists(f"{root}/cgroup.controllers"):
            return tuple(_ancestors(system, 2, root, v2_path))
    return ()


def memory_limits(system: System, total_bytes: int) -> tuple[MemoryLimit, ...]:
    """Every level that limits memory, innermost first, with its headroom."""
    found = (_memory_limit(system, level, total_bytes) for level in levels(system, "memory"))
    return tuple(limit for limit in found if limit is not None)


def quota_cpus(system: System) -> float | None:
    """CPUs' worth of time that CFS quotas allow: the least over all levels, None without a quota."""
    found = [_quota(system, level) for level in levels(system, "cpu")]
    return min((quota for quota in found if quota is not None), default=None)


def oom_kills(system: System) -> int | None:
    """Kills by the OOM killer counted at this process's own level, None when not counted."""
    level = next(iter(levels(system, "memory")), None)
    if level is None:
        return None
    name = "memory.events" if level.version == 2 else "memory.oom_control"
    return _table(system.read(f"{level.folder}/{name}")).get("oom_kill")


def _ancestors(system: System, version: int, root: str, path: str) -> Iterator[Level]:
    parts = [part for part in path.split("/") if part and part != ".."]
    if parts and not system.exists(f"{root}/{'/'.join(parts)}"):
        parts = []
    while True:
        inner = "/".join(parts)
        yield Level(version, f"{root}/{inner}".rstrip("/"), f"/{inner}")
        if not parts:
            return
        parts.pop()


def _memory_limit(system: System, level: Level, total_bytes: int) -> MemoryLimit | None:
    stat = _table(system.read(f"{level.folder}/memory.stat"))
    if level.version == 2:
        limit = min(
            _number(system, level, "memory.max", total_bytes),
            _number(system, level, "memory.high", total_bytes),
        )
        used = _number(system, level, "memory.current", 0)
        cache = stat.get("inactive_file", 0) + stat.get("active_file", 0)
        dirty = stat.get("file_dirty", 0)
    else:
        limit = _number(system, level, "memory.limit_in_bytes", total_bytes)
        used = _number(system, level, "memory.usage_in_bytes", 0)
        cache = stat.get("total_inactive_file", 0) + stat.get("total_active_file", 0)
        dirty = stat.get("total_dirty", 0)
    if limit >= total_bytes:
        return None
    return MemoryLimit(level.path, limit, max(0, limit - max(0, used - max(0, cache - dirty))))


def _quota(system: System, level: Level) -> float | None:
    if level.version == 2:
        quota, _, period = (system.read(f"{level.folder}/cpu.max") or "max 1").partition(" ")
    else:
        quota = system.read(f"{level.folder}/cpu.cfs_quota_us") or "-1"
        period = system.read(f"{level.folder}/cpu.cfs_period_us") or "100000"
    try:
        time_us, period_us = int(quota), int(period)
    except ValueError:
        return None  # "max"
    return time_us / period_us if time_us > 0 and period_us > 0 else None


def _number(system: System, level: Level, name: str, default: int) -> int:
    """A byte count; "max" and a missing file are `default`."""
    text = (system.read(f"{level.folder}/{name}") or "").strip()
    return int(text) if text.isdigit() else default


def _table(text: str | None) -> dict[str, int]:
    """A file of "name number" lines."""
    pairs = (line.split() for line in (text or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
