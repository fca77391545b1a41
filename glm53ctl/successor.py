"""The machine as a plan would find it after a running server has left: its memory is free again.

What cannot run even then must be refused before the running server is stopped.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from glm53ctl.hardware import Gpu, Hardware
from glm53ctl.plan import Plan

if TYPE_CHECKING:
    from glm53ctl.choose import Situation
    from glm53ctl.supervisor.state import Instance


@dataclass(frozen=True, slots=True)
class Held:
    """What a running server would give back: bytes of RAM, and bytes of one card's VRAM."""

    ram_bytes: int
    vram_bytes: int = 0
    gpu_uuid: str | None = None


def after_stop(situation: Situation, instance: Instance) -> Situation:
    """The situation once `instance` has ended; the same one when nothing of it runs.

    Raises Conflict, with the way out, when the files of the running instance were removed or damaged.
    """
    from glm53ctl.starting import running_plan
    from glm53ctl.supervisor.state import read_record, session_members

    child = (read_record(instance) or {}).get("child")
    if not child:
        return situation
    pids = frozenset(session_members(child["pid"]))
    found = held(situation.hardware, running_plan(instance), pids, resident_bytes(pids))
    return replace(situation, hardware=given_back(situation.hardware, found))


def held(hardware: Hardware, plan: Plan, pids: frozenset[int], ram_bytes: int) -> Held:
    """What the processes hold; the plan's own budget of VRAM where the driver does not tell."""
    if plan.gpu is None:
        return Held(ram_bytes)
    told = told_vram_bytes(hardware, plan.gpu.uuid, pids)
    return Held(ram_bytes, told or planned_vram_bytes(plan), plan.gpu.uuid)


def told_vram_bytes(hardware: Hardware, uuid: str, pids: frozenset[int]) -> int:
    """What the driver says that these processes hold on a card; 0 where it does not tell."""
    return sum(
        process.used_bytes or 0
        for gpu in hardware.gpus
        if gpu.uuid == uuid
        for process in gpu.processes
        if process.pid in pids
    )


def planned_vram_bytes(plan: Plan) -> int:
    return sum(
        item.bytes for item in plan.budgets if item.pool == "vram" and item.name != "reserve"
    )


def given_back(hardware: Hardware, found: Held) -> Hardware:
    """The hardware with that memory free, nowhere more than there is. Pure."""
    ram = hardware.ram
    limits = tuple(
        replace(
            limit,
            headroom_bytes=max(
                limit.headroom_bytes, min(limit.limit_bytes, limit.headroom_bytes + found.ram_bytes)
            ),
        )
        for limit in ram.limits
    )
    available = min(ram.total_bytes, ram.available_bytes + found.ram_bytes)
    gpus = tuple(
        _freed(gpu, found.vram_bytes) if gpu.uuid == found.gpu_uuid else gpu
        for gpu in hardware.gpus
    )
    return replace(hardware, ram=replace(ram, available_bytes=available, limits=limits), gpus=gpus)


def _freed(gpu: Gpu, vram_bytes: int) -> Gpu:
    if gpu.free_bytes is None:
        return gpu
    free = gpu.free_bytes + vram_bytes
    return replace(gpu, free_bytes=free if gpu.total_bytes is None else min(free, gpu.total_bytes))


def resident_bytes(pids: frozenset[int]) -> int:
    """RAM that these processes hold now."""
    import psutil

    total = 0
    for pid in pids:
        with suppress(psutil.Error):
            total += psutil.Process(pid).memory_info().rss
    return total
