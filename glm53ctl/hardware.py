"""What a machine has, as frozen values. None means unknown; `Hardware.unknown` says why.

Bytes are ints. Nothing here reads the machine: `probes` fills these in, the planner and the doctor
read them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where a fact came from: a path or an API, and the raw text found there."""

    source: str
    raw: str


@dataclass(frozen=True, slots=True)
class NumaNode:
    index: int
    cpus: tuple[int, ...]  # empty: a memory-only node
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processors we may run on: `allowed` is online and in the affinity mask."""

    architecture: str
    model_name: str
    flags: frozenset[str]  # usable on every allowed CPU
    online: tuple[int, ...]
    allowed: tuple[int, ...]
    performance: tuple[
        int, ...
    ]  # one logical CPU per allowed physical core, P cores only on hybrids
    efficiency: tuple[int, ...] = ()  # one logical CPU per allowed E core
    quota_cpus: float | None = None  # None: no CFS quota
    smt: bool = False
    hypervisor: bool = False
    nodes: tuple[NumaNode, ...] = ()
    governor: str | None = None
    self_test: str | None = None  # outcome of running the kernels' self-test: "ok", "SIGILL", ...
    evidence: tuple[Evidence, ...] = ()

    @property
    def usable_cores(self) -> int:
        """Physical cores that may be busy at once: P cores, and no more than the quota pays for."""
        cores = len(self.performance)
        return cores if self.quota_cpus is None else max(1, min(cores, int(self.quota_cpus)))

    @property
    def limited_by(self) -> str | None:
        if self.quota_cpus is not None and int(self.quota_cpus) < len(self.performance):
            return "CFS quota"
        return "cpuset" if len(self.allowed) < len(self.online) else None


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """One cgroup level that limits memory. `headroom_bytes` counts its reclaimable page cache."""

    path: str
    limit_bytes: int
    headroom_bytes: int


@dataclass(frozen=True, slots=True)
class Ram:
    """Host memory and every cgroup limit above this process."""

    total_bytes: int
    available_bytes: int  # MemAvailable
    zfs_evictable_bytes: int = 0
    hugepages_free_bytes: int = 0
    swap_total_bytes: int = 0
    swap_on_zram: bool = False
    overcommit_never: bool = False
    transparent_hugepages: str | None = None
    limits: tuple[MemoryLimit, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    owner: str = "this machine"  # whose total it is; another one's under --what-if

    @property
    def usable_bytes(self) -> int:
        """What a new process could fill: the tightest of the host and all cgroup levels.

        Reserved huge pages are not in it: nothing of ours takes memory from that pool.
        """
        host = self.available_bytes + self.zfs_evictable_bytes
        return max(0, min([host, *(limit.headroom_bytes for limit in self.limits)]))

    @property
    def limiter(self) -> str:
        """What binds `usable_bytes`: "this machine", another `owner` or the path of a cgroup."""
        host = self.available_bytes + self.zfs_evictable_bytes
        tightest = min(self.limits, key=lambda limit: limit.headroom_bytes, default=None)
        return tightest.path if tightest and tightest.headroom_bytes < host else self.owner


@dataclass(frozen=True, slots=True)
class GpuProcess:
    pid: int
    kind: str  # "compute", "graphics" or both: "compute+graphics"
    used_bytes: int | None
    name: str | None  # None: the pid is not in our namespace


@dataclass(frozen=True, slots=True)
class Link:
    """A PCIe link; generation and width of the narrowest hop, as sysfs or NVML reads it now."""

    generation: int | None
    width: int | None
    max_generation: int | None = None
    max_width: int | None = None
    narrowest: str | None = None  # address of the hop that limits the path
    removable: bool = False
    evidence: tuple[Evidence, ...] = ()

    @property
    def ceiling_bytes_per_s(self) -> float | None:
        """Payload limit at the best generation this path can train to; idle cards drop theirs."""
        generation = self.max_generation or self.generation
        if generation is None or self.width is None:
            return None
        return GB_PER_LANE[generation] * 1e9 * self.width


GB_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    uuid: str
    name: str
    address: str | None = None  # sysfs form, 0000:01:00.0
    capability: tuple[int, int] | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    unified_memory: bool = False
    mig_enabled: bool = False
    parent_uuid: str | None = None  # set for a MIG slice
    display_active: bool | None = None
    persistence: bool | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    throttle_reasons: int | None = None
    bar1_bytes: int | None = None
    numa_node: int | None = None
    link: Link | None = None
    processes: tuple[GpuProcess, ...] = ()
    evidence: tuple[Evidence, ...] = ()

    @property
    def graphics_bytes(self) -> int:
        """VRAM that desktop programs hold."""
        return sum(item.used_bytes or 0 for item in self.processes if "graphics" in item.kind)


class DriverState(StrEnum):
    OK = "ok"
    ABSENT = "absent"  # no NVIDIA device and no driver library
    NO_LIBRARY = "no_library"  # a device, but no libnvidia-ml
    NOT_LOADED = "not_loaded"
    MISMATCH = "mismatch"  # upgraded, not rebooted
    NO_ACCESS = "no_access"  # device files missing or not permitted
    LOST = "lost"  # fallen off the bus
    HUNG = "hung"  # no answer before the deadline
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Driver:
    state: DriverState
    version: str | None = None
    cuda: tuple[int, int] | None = None
    detail: str = ""
    stale_binding: bool = False  # the old third-party pynvml shadows nvidia-ml-py
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Host:
    system: str  # "Debian GNU/Linux 12"
    kernel: str
    wsl: int | None = None  # 1 or 2
    container: str | None = None  # docker, podman, lxc, ...
    boot_id: str | None = None
    memlock_soft_bytes: int | None = None  # None: unlimited
    memlock_hard_bytes: int | None = None
    ipc_lock: bool = False  # CAP_IPC_LOCK, which lifts the limit
    shm_total_bytes: int | None = None
    max_map_count: int | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Rates measured on this machine. None: not measured."""

    h2d_bytes_per_s: float | None = None
    h2d_generation: int | None = None  # seen during the copy
    h2d_width: int | None = None
    ram_read_bytes_per_s: float | None = None
    tier_bytes_per_s: float | None = None
    disk_read_bytes_per_s: float | None = None
    pin_limit_bytes: int | None = None  # None: no wall found
    date: str | None = None  # ISO day of rates from an earlier run; None: just measured
    h2d_replays: int | None = None  # packets sent again during the copy
    h2d_throttle: int | None = None  # NVML's reasons for slower clocks during the copy, ORed


@dataclass(frozen=True, slots=True)
class Hardware:
    cpu: Cpu
    ram: Ram
    driver: Driver
    host: Host
    gpus: tuple[Gpu, ...] = ()
    engines: frozenset[str] = frozenset()  # importable here: "torch", "exllamav3", "transformers"
    measured: Measured = field(default_factory=Measured)
    unknown: tuple[tuple[str, str], ...] = ()  # (fact, reason)
