"""Processors: which we may run on, which are physical cores, and what instructions they have.

One thread per physical core of one kind is the rule: SMT siblings and E cores in a pool that waits
for its slowest member cost more than they give.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from glm53ctl.cpulist import format_cpulist, parse_cpulist
from glm53ctl.hardware import Cpu, Evidence, NumaNode
from glm53ctl.probes import cgroup
from glm53ctl.probes.system import System

CPUS = "/sys/devices/system/cpu"
NODES = "/sys/devices/system/node"
CPUINFO_DEADLINE_S = 3.0


def probe(system: System) -> Cpu:
    """The CPUs of this process. Facts that cannot be read fall back to one core per allowed CPU."""
    blocks = _cpuinfo(system)
    affinity = _affinity(system)
    online = parse_cpulist(system.read(f"{CPUS}/online")) or tuple(sorted(blocks)) or affinity
    isolated = set(parse_cpulist(system.read(f"{CPUS}/isolated")))
    allowed = tuple(cpu for cpu in affinity or online if cpu in set(online) - isolated) or online
    cores = _cores(system, allowed)
    efficient = set(parse_cpulist(system.read("/sys/devices/cpu_atom/cpus")))
    hybrid = efficient & set(allowed) and set(allowed) - efficient
    performance = [core for core in cores if not (hybrid and core[0] in efficient)]
    first = blocks.get(allowed[0], {}) if allowed else {}
    name, flags = first.get("model name", ""), _flags(blocks, allowed)
    other: Mapping[str, Any] = {} if name and flags else _second_opinion(system)
    name = name or str(other.get("brand", ""))
    flags = flags or frozenset[str](other.get("flags", ()))
    return Cpu(
        architecture=_architecture(first),
        model_name=name or "unknown CPU",
        flags=flags,
        online=online,
        allowed=allowed,
        performance=tuple(core[0] for core in performance),
        efficiency=tuple(core[0] for core in cores if hybrid and core[0] in efficient),
        quota_cpus=cgroup.quota_cpus(system),
        smt=any(len(core) > 1 for core in cores),
        hypervisor="hypervisor" in flags,
        nodes=_nodes(system),
        governor=(system.read(f"{CPUS}/cpu0/cpufreq/scaling_governor") or "").strip() or None,
        evidence=(
            Evidence("py-cpuinfo" if other else "/proc/cpuinfo", name),
            Evidence("/proc/self/status", f"Cpus_allowed_list {format_cpulist(affinity)}"),
        ),
    )


def _second_opinion(system: System) -> Mapping[str, Any]:
    """What py-cpuinfo says where /proc/cpuinfo is masked, or names no model as on ARM; may be empty.

    Its flags may be more than the kernel enables: the self-test of our kernels has the last word.
    """
    answer = system.measure("cpuinfo", deadline_s=CPUINFO_DEADLINE_S)
    return {} if "problem" in answer else answer


def _affinity(system: System) -> tuple[int, ...]:
    for line in (system.read("/proc/self/status") or "").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return parse_cpulist(line.partition(":")[2])
    return ()


def _cpuinfo(system: System) -> dict[int, dict[str, str]]:
    """/proc/cpuinfo: the fields of each processor."""
    found: dict[int, dict[str, str]] = {}
    for block in (system.read("/proc/cpuinfo") or "").split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        fields = {name.strip(): value.strip() for name, _, value in pairs}
        number = fields.get("processor", "")
        if number.isdigit():
            found[int(number)] = fields
    return found


def _flags(blocks: dict[int, dict[str, str]], allowed: tuple[int, ...]) -> frozenset[str]:
    """Flags that every allowed CPU has; ARM calls them Features."""
    sets = [
        set((blocks[cpu].get("flags") or blocks[cpu].get("Features") or "").split())
        for cpu in allowed
        if cpu in blocks
    ]
    return frozenset(sets[0].intersection(*sets)) if sets else frozenset()


def _architecture(fields: dict[str, str]) -> str:
    if "flags" in fields:
        return "x86_64"
    return "aarch64" if "Features" in fields else platform.machine()


def _cores(system: System, allowed: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Allowed CPUs grouped into physical cores, by the siblings that each CPU lists."""
    seen: dict[tuple[int, ...], None] = {}
    for cpu in allowed:
        topology = f"{CPUS}/cpu{cpu}/topology"
        text = system.read(f"{topology}/core_cpus_list") or system.read(
            f"{topology}/thread_siblings_list"
        )
        siblings = parse_cpulist(text) or (cpu,)
        mine = tuple(item for item in siblings if item in allowed) or (cpu,)
        seen[mine] = None
    return list(seen)


def _nodes(system: System) -> tuple[NumaNode, ...]:
    found: list[NumaNode] = []
    for name in system.names(NODES):
        number = name.removeprefix("node")
        if name.startswith("node") and number.isdigit():
            cpus = parse_cpulist(system.read(f"{NODES}/{name}/cpulist"))
            found.append(NumaNode(int(number), cpus, _node_bytes(system, name)))
    return tuple(found)


def _node_bytes(system: System, name: str) -> int | None:
    for line in (system.read(f"{NODES}/{name}/meminfo") or "").splitlines():
        parts = line.split()
        if len(parts) >= 4 and parts[2] == "MemTotal:" and parts[3].isdigit():
            return int(parts[3]) * 1024
    return None
