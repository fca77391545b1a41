"""Host memory: what a new process could really fill."""

from __future__ import annotations

from glm53ctl.hardware import Evidence, Ram
from glm53ctl.probes import cgroup
from glm53ctl.probes.system import System

KIB = 1024


def probe(system: System) -> Ram:
    """Memory of this host and the limits above this process. Zeros when /proc/meminfo is missing."""
    meminfo = _meminfo(system)
    total = meminfo.get("MemTotal", 0)
    available = meminfo.get("MemAvailable")
    if available is None:  # kernels before 3.14
        available = (
            meminfo.get("MemFree", 0)
            + meminfo.get("Buffers", 0)
            + meminfo.get("Cached", 0)
            - meminfo.get("Shmem", 0)
        )
    limits = cgroup.memory_limits(system, total)
    swaps = (system.read("/proc/swaps") or "").splitlines()[1:]
    return Ram(
        total_bytes=total,
        available_bytes=available,
        zfs_evictable_bytes=_zfs_evictable(system),
        hugepages_free_bytes=_hugepages_free(system),
        swap_total_bytes=meminfo.get("SwapTotal", 0),
        swap_on_zram=any("zram" in line for line in swaps),
        overcommit_never=(system.read("/proc/sys/vm/overcommit_memory") or "").strip() == "2",
        transparent_hugepages=_selected(system.read("/sys/kernel/mm/transparent_hugepage/enabled")),
        limits=limits,
        evidence=(
            Evidence("/proc/meminfo", f"MemAvailable {available} bytes of {total}"),
            *(
                Evidence(
                    f"cgroup {item.path}", f"limit {item.limit_bytes}, left {item.headroom_bytes}"
                )
                for item in limits
            ),
        ),
    )


def _meminfo(system: System) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    found: dict[str, int] = {}
    for line in (system.read("/proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        parts = rest.split()
        if parts and parts[0].isdigit():
            found[name] = int(parts[0]) * (KIB if len(parts) > 1 else 1)
    return found


def _zfs_evictable(system: System) -> int:
    """ARC above its minimum: MemAvailable does not count it, yet ZFS gives it back.

    Not added where meminfo is lxcfs's: the container does not own the host's ARC.
    """
    if "lxcfs" in (system.read("/proc/self/mountinfo") or ""):
        return 0
    values: dict[str, int] = {}
    for line in (system.read("/proc/spl/kstat/zfs/arcstats") or "").splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[2].isdigit():
            values[parts[0]] = int(parts[2])
    return max(0, values.get("size", 0) - values.get("c_min", 0))


def _hugepages_free(system: System) -> int:
    """Free, unreserved huge pages of every size; they are in MemTotal but not in MemAvailable."""
    base = "/sys/kernel/mm/hugepages"
    total = 0
    for name in system.names(base):
        size_kib = name.removeprefix("hugepages-").removesuffix("kB")
        free = (system.read(f"{base}/{name}/free_hugepages") or "0").strip()
        reserved = (system.read(f"{base}/{name}/resv_hugepages") or "0").strip()
        if size_kib.isdigit() and free.isdigit() and reserved.isdigit():
            total += max(0, int(free) - int(reserved)) * int(size_kib) * KIB
    if total:
        return total
    meminfo = _meminfo(system)
    pages = meminfo.get("HugePages_Free", 0) - meminfo.get("HugePages_Rsvd", 0)
    return max(0, pages) * meminfo.get("Hugepagesize", 0)


def _selected(text: str | None) -> str | None:
    """The bracketed word of a sysfs choice: "always [madvise] never"."""
    if not text or "[" not in text:
        return None
    return text.partition("[")[2].partition("]")[0]
