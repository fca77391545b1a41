"""RAM checks: what is usable against what the plan needs, and what eats into it."""

from __future__ import annotations

from glm53ctl.checks.base import Context, Finding, Fix, Spec, Status, passed, skipped, unknown
from glm53ctl.env import GIB
from glm53ctl.limits import arena_bytes, arena_words
from glm53ctl.planner import budget_total
from glm53ctl.render import gib
from glm53ctl.words import counted

KILLERS = frozenset({"systemd-oomd", "earlyoom", "nohang", "oomd"})
SMALL_SHM_BYTES = 64 << 20


def usable(context: Context) -> Finding:
    ram = context.hardware.ram
    if ram.total_bytes == 0:
        return unknown("/proc/meminfo cannot be read")
    have = ram.usable_bytes
    text = f"{have / GIB:.1f} of {ram.total_bytes / GIB:.1f} GiB usable"
    if ram.zfs_evictable_bytes:
        text += f" (incl. {gib(ram.zfs_evictable_bytes)} evictable ZFS ARC)"
    if ram.limiter != "this machine":
        text += f", limited by {ram.limiter}"
    numbers = {"usable_bytes": have, "total_bytes": ram.total_bytes}
    plan = context.outcome.plan if context.outcome else None
    if plan is not None:
        needed = budget_total(plan.budgets, "ram")
        text = f"{text}, the plan needs {gib(needed)}"
        return Finding(Status.PASS, text, numbers=numbers, evidence=ram.evidence)
    if context.model is None:
        return Finding(Status.PASS, text, numbers=numbers, evidence=ram.evidence)
    arena = arena_bytes(context.model.facts)
    if have < arena:
        hint = (
            "raise the limit of that cgroup"
            if ram.limiter != "this machine"
            else "free or add memory"
        )
        return Finding(
            Status.FAIL, text, required=f"{gib(arena)} for the experts alone ({arena_words(context.model.facts)})",
            fix=Fix(hint), numbers=numbers, evidence=ram.evidence,
        )  # fmt: skip
    return Finding(Status.PASS, text, numbers=numbers, evidence=ram.evidence)


def zfs(context: Context) -> Finding:
    ram = context.hardware.ram
    if not ram.zfs_evictable_bytes:
        return skipped("no ZFS cache")
    if ram.zfs_evictable_bytes < ram.total_bytes // 8:
        return passed(f"{gib(ram.zfs_evictable_bytes)} evictable")
    half = (ram.total_bytes // 8) or 1
    return Finding(
        Status.WARN,
        f"{gib(ram.zfs_evictable_bytes)} in the ZFS ARC; it is given back, but slowly",
        fix=Fix(
            "cap it",
            (f"echo {half} | sudo tee /sys/module/zfs/parameters/zfs_arc_max",),
            needs_root=True,
        ),
    )


def huge_pages(context: Context) -> Finding:
    ram = context.hardware.ram
    parked = ram.hugepages_free_bytes
    if not parked:
        return passed(f"none parked; transparent: {ram.transparent_hugepages or 'unknown'}")
    return Finding(
        Status.WARN,
        f"{parked / GIB:.0f} GiB parked in hugepages, which nothing else can use",
        fix=Fix(
            "release them; the experts use transparent huge pages, which need no reservation",
            ("sudo sysctl vm.nr_hugepages=0",),
            needs_root=True,
        ),
        numbers={"parked_bytes": parked},
    )


def overcommit(context: Context) -> Finding:
    ram = context.hardware.ram
    if ram.overcommit_never:
        return Finding(
            Status.WARN,
            "vm.overcommit_memory is 2: large reservations are refused",
            fix=Fix("allow them", ("sudo sysctl vm.overcommit_memory=0",), needs_root=True),
        )
    if ram.swap_on_zram:
        return passed("swap is on zram: compressed RAM, not extra room")
    return passed("swap " + (gib(ram.swap_total_bytes) if ram.swap_total_bytes else "off"))


def bandwidth(context: Context) -> Finding:
    rate = context.hardware.measured.ram_read_bytes_per_s
    if rate is None:
        return skipped("not measured")
    cores = len(context.hardware.cpu.performance)
    return Finding(
        Status.PASS,
        f"{rate / 1e9:.0f} GB/s read, measured on {counted(cores, 'core')}",
        numbers={"ram_read_bytes_per_s": rate},
    )


def memlock(context: Context) -> Finding:
    """Low memlock does not stop CUDA's pinning on native Linux, so it never fails alone."""
    host = context.hardware.host
    soft, hard = host.memlock_soft_bytes, host.memlock_hard_bytes
    if soft is None or host.ipc_lock:
        return passed("unlimited" if soft is None else f"{gib(soft)}, lifted by CAP_IPC_LOCK")
    text = f"{gib(soft)} soft, {gib(hard) if hard is not None else 'unlimited'} hard"
    if not context.wants_gpu:
        return passed(f"{text}, not needed by this plan")
    return Finding(
        Status.WARN if soft <= 65536 else Status.PASS,
        f"{text}; CUDA does not count against it, mlock does",
        fix=Fix(
            "for a service: a drop-in with LimitMEMLOCK=infinity",
            ("sudo systemctl edit glm53@", "printf '[Service]\\nLimitMEMLOCK=infinity\\n'"),
            needs_root=True,
        )
        if soft <= 65536
        else None,
        numbers={"memlock_soft_bytes": soft, "memlock_hard_bytes": hard},
    )


def pin_wall(context: Context) -> Finding:
    wall = context.hardware.measured.pin_limit_bytes
    if wall is not None:
        return Finding(
            Status.WARN,
            f"at most {wall / (1 << 20):.0f} MiB can be pinned",
            fix=Fix("use Linux without WSL for the GPU modes; pinned memory is limited by Windows"),
            numbers={"pin_limit_bytes": wall},
        )
    if context.hardware.host.wsl:
        return unknown("WSL2 limits pinned memory; measured by `glm53ctl doctor` without --quick")
    return skipped("not limited on native Linux")


def shared_memory(context: Context) -> Finding:
    size = context.hardware.host.shm_total_bytes
    if size is None:
        return unknown("/dev/shm cannot be read")
    if size <= SMALL_SHM_BYTES:
        return Finding(
            Status.WARN,
            f"/dev/shm has {gib(size)}",
            fix=Fix("start the container with more", ("docker run --shm-size=2g ...",)),
            numbers={"shm_bytes": size},
        )
    return passed(f"/dev/shm has {gib(size)}")


def killers(context: Context) -> Finding:
    """User-space OOM killers end large processes on pressure, long before memory is gone."""
    system = context.system
    found = sorted(
        {
            name
            for pid in system.names("/proc")
            if pid.isdigit()
            and (name := (system.read(f"/proc/{pid}/comm") or "").strip()) in KILLERS
        }
    )
    if not found or not context.wants_gpu:
        return passed(f"{', '.join(found)} runs" if found else "no early OOM killer")
    return Finding(
        Status.WARN,
        f"{', '.join(found)} runs: it may kill the server while the experts fill RAM",
        fix=Fix(
            "exempt the server's unit",
            ("sudo systemctl edit glm53@", "printf '[Service]\\nManagedOOMPreference=omit\\n'"),
            needs_root=True,
        ),
    )


SPECS = (
    Spec("RAM-001", "RAM", "Memory", usable),
    Spec("RAM-002", "bandwidth", "Memory", bandwidth),
    Spec("RAM-003", "huge pages", "Memory", huge_pages),
    Spec("RAM-004", "swap", "Memory", overcommit),
    Spec("RAM-005", "ZFS", "Memory", zfs),
    Spec("RAM-006", "OOM killers", "Memory", killers),
    Spec("LIM-001", "memlock", "Memory", memlock),
    Spec("LIM-002", "shared memory", "Memory", shared_memory),
    Spec("LIM-003", "pinning", "Memory", pin_wall),
)
