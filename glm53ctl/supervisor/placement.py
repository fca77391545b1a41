"""Does the server really hold VRAM on the GPU of its plan? Pure; the snapshot is NVML's, as JSON.

A server that quietly landed elsewhere answers health checks just as well, only ten times slower. What
cannot be seen (a container's NVML lists no processes, or pids of another namespace) is unknown, and
unknown is no reason to stop a server.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_NOTHING_BYTES = 100 << 20  # a CUDA context alone is larger, a driver at rest smaller


class Where(StrEnum):
    HERE = "here"
    ELSEWHERE = "elsewhere"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Placement:
    where: Where
    words: str


def judge(snapshot: Mapping[str, Any], uuid: str, pids: Set[int]) -> Placement:
    """Where the processes `pids` hold VRAM, seen from the GPU `uuid`."""
    if "problem" in snapshot:
        return Placement(Where.UNKNOWN, f"NVML: {snapshot.get('detail') or snapshot['problem']}")
    gpus: list[Mapping[str, Any]] = [*snapshot.get("gpus", [])]
    planned = next((gpu for gpu in gpus if gpu.get("uuid") == uuid), None)
    if planned is None:
        return Placement(Where.UNKNOWN, f"NVML does not know {uuid}")
    if _holders(planned) & pids:
        return Placement(Where.HERE, f"VRAM is held on {uuid}")
    others = [str(gpu.get("uuid")) for gpu in gpus if _holders(gpu) & pids]
    if others:
        return Placement(Where.ELSEWHERE, f"VRAM is held on {others[0]}, not on {uuid}")
    memory = planned.get("memory")
    if memory and not _holders(planned) and memory["used"] < _NOTHING_BYTES:
        used_mib = memory["used"] >> 20
        return Placement(Where.ELSEWHERE, f"nobody holds VRAM on {uuid} ({used_mib} MiB used)")
    return Placement(Where.UNKNOWN, f"NVML names no process of ours on {uuid}")


def _holders(gpu: Mapping[str, Any]) -> set[int]:
    holders: list[Mapping[str, Any]] = gpu.get("processes") or []
    return {int(item["pid"]) for item in holders}
