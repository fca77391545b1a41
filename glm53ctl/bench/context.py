"""What the machine did while something was measured, and whether that taints the numbers.

A thread looks once a second: the server's /stats, the GPU through nvidia-smi, and the CPU time that
neither the server nor the measuring used. Judging is pure.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

from glm53ctl.probes import cgroup
from glm53ctl.probes.system import System

INTERVAL_S = 1.0
OTHERS_SHARE = 0.15  # of all CPUs: more than this disturbs
SWAP_BYTES = 16 << 20
THROTTLED_MS = 200
# Bits of NVML's clock event reasons that mean "held back": software thermal, hardware slowdown,
# hardware thermal, power brake. A software power cap is the card's setting, not a disturbance.
HELD_BACK = 0x20 | 0x8 | 0x40 | 0x80
GPU_FIELDS = (
    "uuid", "clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "power.limit",
    "pcie.link.gen.current", "pcie.link.width.current", "clocks_throttle_reasons.active",
    "memory.used",
)  # fmt: skip

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of the machine at one moment."""

    at_s: float
    busy_cpu_s: float
    ours_cpu_s: float
    swap_bytes: int
    throttled_ms: float | None
    available_bytes: int


@dataclass(slots=True)
class Recorder:
    """Collects phases and samples of one run. Used by one thread, with a sampler of its own."""

    system: System
    server_pid: int | None
    gpu_uuid: str | None
    read_stats: Callable[[], Facts | None]
    phases: list[Facts] = field(default_factory=list[Facts])
    samples: list[Facts] = field(default_factory=list[Facts])
    _start_s: float = field(default_factory=time.monotonic)

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Watch the machine while the block runs."""
        ended = threading.Event()
        gpu: list[Facts] = []
        watcher = threading.Thread(target=self._watch, args=(name, ended, gpu), daemon=True)
        before = self._reading()
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join(timeout=5)
            self.phases.append(phase_facts(name, before, self._reading(), gpu))

    def _watch(self, name: str, ended: threading.Event, gpu: list[Facts]) -> None:
        while not ended.is_set():
            stats = self.read_stats()
            if stats is not None:
                at = round(time.monotonic() - self._start_s, 2)
                self.samples.append({"t_s": at, "phase": name, **stats_sample(stats)})
            if self.gpu_uuid is not None and (found := self._gpu(self.gpu_uuid)) is not None:
                gpu.append(found)
            ended.wait(INTERVAL_S)

    def _gpu(self, uuid: str) -> Facts | None:
        line = ["nvidia-smi", "-i", uuid, f"--query-gpu={','.join(GPU_FIELDS)}",
                "--format=csv,noheader,nounits"]  # fmt: skip
        result = self.system.run(line)
        return parse_gpu(result.out) if result.ok else None

    def _reading(self) -> Reading:
        import psutil

        times = psutil.cpu_times()
        busy = sum(times) - times.idle - getattr(times, "iowait", 0.0)
        busy -= getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        swap = psutil.swap_memory()
        return Reading(
            at_s=time.monotonic(),
            busy_cpu_s=busy,
            ours_cpu_s=_tree_cpu_s(os.getpid()) + _tree_cpu_s(self.server_pid),
            swap_bytes=swap.sin + swap.sout,
            throttled_ms=throttled_ms(self.system),
            available_bytes=psutil.virtual_memory().available,
        )


def _tree_cpu_s(pid: int | None) -> float:
    """CPU seconds of a process, its children, and its children that have ended."""
    import psutil

    total = 0.0
    with suppress(psutil.Error):
        process = psutil.Process(pid) if pid is not None else None
        for one in [process, *process.children(recursive=True)] if process else []:
            with suppress(psutil.Error):
                total += sum(one.cpu_times()[:4])
    return total


def throttled_ms(system: System) -> float | None:
    """Time that CPU quotas held this process back, over all levels; None without a quota."""
    found: list[float] = []
    for level in cgroup.levels(system, "cpu"):
        for line in (system.read(f"{level.folder}/cpu.stat") or "").splitlines():
            name, _, value = line.partition(" ")
            if name == "throttled_usec":
                found.append(int(value) / 1e3)
            elif name == "throttled_time":
                found.append(int(value) / 1e6)
    return max(found, default=None)


def parse_gpu(line: str) -> Facts | None:
    """One line of nvidia-smi as numbers by field; what the driver does not tell is None."""
    cells = [cell.strip() for cell in line.strip().split(",")]
    if len(cells) != len(GPU_FIELDS):
        return None
    return {
        name: cell if name == "uuid" else _number(cell)
        for name, cell in zip(GPU_FIELDS, cells, strict=True)
    }


def _number(cell: str) -> float | None:
    try:
        return float(int(cell, 16)) if cell.startswith("0x") else float(cell)
    except ValueError:
        return None


def phase_facts(name: str, before: Reading, after: Reading, gpu: list[Facts]) -> Facts:
    """One phase as it is written to the result."""
    took = max(after.at_s - before.at_s, 1e-9)
    others = (after.busy_cpu_s - before.busy_cpu_s) - (after.ours_cpu_s - before.ours_cpu_s)
    throttled = None
    if before.throttled_ms is not None and after.throttled_ms is not None:
        throttled = round(after.throttled_ms - before.throttled_ms, 1)
    return {
        "phase": name,
        "seconds": round(took, 2),
        "other_cpus": round(max(0.0, others / took), 2),
        "cpus": os.cpu_count() or 1,
        "swap_bytes": max(0, after.swap_bytes - before.swap_bytes),
        "quota_throttled_ms": throttled,
        "ram_available_bytes": after.available_bytes,
        "gpu": _gpu_summary(gpu),
    }


def _gpu_summary(samples: list[Facts]) -> Facts | None:
    """Extremes of the samples: the most of what grows under load, all throttle reasons together."""
    if not samples:
        return None
    found: Facts = {"uuid": samples[0]["uuid"], "samples": len(samples)}
    for name in GPU_FIELDS[1:]:
        values = [one[name] for one in samples if one[name] is not None]
        if name == "clocks_throttle_reasons.active":
            reasons = 0
            for value in values:
                reasons |= int(value)
            found["throttle_reasons"] = reasons
        elif values:
            found[name.replace(".", "_")] = max(values)
    return found


def taints(phases: list[Facts], max_link: tuple[int, int] | None = None) -> tuple[str, ...]:
    """What makes the speed of a run doubtful, in words. `max_link` is (generation, width)."""
    return tuple(text for facts in phases for text in _phase_taints(facts, max_link))


def _phase_taints(facts: Facts, max_link: tuple[int, int] | None) -> Iterator[str]:
    name = facts["phase"]
    if facts["other_cpus"] > OTHERS_SHARE * facts["cpus"]:
        yield f"{name}: other programs used {facts['other_cpus']:.1f} of {facts['cpus']} CPUs"
    if facts["swap_bytes"] > SWAP_BYTES:
        yield f"{name}: {facts['swap_bytes'] / 1e6:.0f} MB were swapped"
    if (facts["quota_throttled_ms"] or 0) > THROTTLED_MS:
        yield f"{name}: a CPU quota held us back for {facts['quota_throttled_ms']:.0f} ms"
    gpu = cast("Facts | None", facts["gpu"])
    if gpu is None:
        return
    if gpu.get("throttle_reasons", 0) & HELD_BACK:
        yield f"{name}: the GPU slowed down (reasons {gpu['throttle_reasons']:#x})"
    generation, width = gpu.get("pcie_link_gen_current"), gpu.get("pcie_link_width_current")
    if max_link is None or generation is None or width is None:
        return
    if generation < max_link[0] or width < max_link[1]:
        yield (
            f"{name}: the link ran at Gen{generation:.0f} x{width:.0f}, "
            f"it can do Gen{max_link[0]} x{max_link[1]}"
        )


def stats_sample(stats: Facts) -> Facts:
    """The counters of /stats that plots show, flat; absent parts are left out."""
    whole = ("completion_tokens", "running", "steps", "decode_s", "prefill_s")
    found: Facts = {name: stats[name] for name in whole if name in stats}
    caches = cast("list[Facts]", stats.get("expert_cache") or [])
    if caches:
        for name in ("hits", "misses", "admitted", "slot_bytes", "layers", "decode_steps"):
            found[name] = caches[0].get(name)
    tier = cast("Facts", stats.get("cpu_tier") or {})
    for name in ("host_jobs", "cpu_experts", "host_busy_ms_per_job", "cpu_experts_per_call",
                 "link_ms_per_expert", "cpu_ms_per_expert", "fixed_ms_per_layer", "gpu_share"):  # fmt: skip
        if name in tier:
            found[name] = tier[name]
    return found
