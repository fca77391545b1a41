"""Memory that other instances of this user have planned and not taken yet, because they still load.

A plan made beside them must leave it to them: two servers that start together would both fit alone.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from glm53ctl.errors import Glm53Error
from glm53ctl.hardware import Evidence, Gpu, Hardware
from glm53ctl.paths import Paths
from glm53ctl.plan import Plan, read_plan
from glm53ctl.planner import budget_total
from glm53ctl.successor import Held, planned_vram_bytes, resident_bytes, told_vram_bytes
from glm53ctl.supervisor.state import Instance, is_locked, read_record, session_members

_LOADING = {"starting", "backoff"}
_TURN_S = 30.0


def others(paths: Paths, own: str) -> Iterator[Instance]:
    """The other instances that were ever started."""
    for file in sorted(paths.state_dir.glob("*/plan.json")):
        if file.parent.name != own:
            yield Instance(file.parent.name, file.parent, paths.runtime_dir / "unused.sock")


def beside(hardware: Hardware, paths: Paths, own: str) -> Hardware:
    """The hardware without what other instances will take while they load."""
    for instance in others(paths, own):
        claim = _claim(instance, hardware)
        if claim is not None and (claim.ram_bytes or claim.vram_bytes):
            hardware = taken(hardware, claim, instance.name)
    return hardware


def _claim(instance: Instance, hardware: Hardware) -> Held | None:
    """What a loading instance has planned beyond what it holds; None for one that does not load."""
    record = read_record(instance)
    if not is_locked(instance.lock_path) or (record and record["phase"] not in _LOADING):
        return None
    try:
        plan = read_plan(instance.plan_path)
    except Glm53Error:
        return None
    child = (record or {}).get("child")
    pids = frozenset(session_members(child["pid"])) if child else frozenset[int]()
    return missing(plan, hardware, pids, resident_bytes(pids))


def missing(plan: Plan, hardware: Hardware, pids: frozenset[int], ram_bytes: int) -> Held:
    """The plan's budgets less what its processes hold by now. Pure."""
    ram = max(0, budget_total(plan.budgets, "ram") - ram_bytes)
    if plan.gpu is None:
        return Held(ram)
    vram = planned_vram_bytes(plan) - told_vram_bytes(hardware, plan.gpu.uuid, pids)
    return Held(ram, max(0, vram), plan.gpu.uuid)


def taken(hardware: Hardware, claim: Held, name: str) -> Hardware:
    """The hardware once a claim is taken. Pure."""
    ram = hardware.ram
    limits = tuple(
        replace(limit, headroom_bytes=max(0, limit.headroom_bytes - claim.ram_bytes))
        for limit in ram.limits
    )
    told = Evidence(f"instance {name!r}, loading", f"{claim.ram_bytes} bytes more to come")
    after = replace(
        ram,
        available_bytes=max(0, ram.available_bytes - claim.ram_bytes),
        limits=limits,
        evidence=(*ram.evidence, told),
    )
    gpus = tuple(
        _filled(gpu, claim.vram_bytes) if gpu.uuid == claim.gpu_uuid else gpu
        for gpu in hardware.gpus
    )
    return replace(hardware, ram=after, gpus=gpus)


def _filled(gpu: Gpu, vram_bytes: int) -> Gpu:
    free = gpu.free_bytes
    return gpu if free is None else replace(gpu, free_bytes=max(0, free - vram_bytes))


@contextmanager
def turn(state_dir: Path) -> Generator[None]:
    """One start of this user at a time looks at the machine and claims its part; a short wait."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _wait_for(fd)
        yield
    finally:
        os.close(fd)


def _wait_for(fd: int) -> None:
    """Take the lock, or go on without it: a start that hangs must not stop all others."""
    deadline = time.monotonic() + _TURN_S
    while time.monotonic() < deadline:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        else:
            return
