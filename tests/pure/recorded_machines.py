"""Recorded machines for tests: a short description becomes a directory tree that the probes read.

Every machine is written by `record`; the named ones in MACHINES are rigs that the planner's and the
doctor's golden files are about.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from glm53ctl.env import Environ
from glm53ctl.probes.system import RecordedSystem

GIB = 1 << 30
AVX2 = "fpu sse2 ssse3 sse4_1 sse4_2 aes avx avx2 fma f16c bmi2"
AVX512 = f"{AVX2} avx512f avx512bw avx512vl avx512vbmi avx512_vnni avx512_bf16"
GPU_MODULES = ["torch", "exllamav3", "transformers", "fastapi"]
CPU_MODULES = ["torch", "transformers", "fastapi"]
DRIVER = {"driver": "580.126.09", "cuda": 13000, "binding": "13.615.71", "problems": {}}


def put(root: Path, name: str, text: str) -> None:
    """Write one file of a recorded machine."""
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def gpu(name: str = "NVIDIA GeForce RTX 3090", **changes: object) -> dict[str, object]:
    """One card as NVML tells it: a 3090 on Gen4 x16 unless changed."""
    total = 24_564 << 20
    card: dict[str, object] = {
        "index": 0,
        "uuid": "GPU-52a3a85d-3c55-ca3a-a955-82c69ed360fc",
        "name": name,
        "name_is_bytes": False,
        "bus_id": "00000000:01:00.0",
        "capability": [8, 6],
        "memory": {
            "total": total,
            "free": total - (400 << 20),
            "used": 10 << 20,
            "reserved": 390 << 20,
        },
        "mig": None,
        "persistence": 1,
        "display_active": 0,
        "power_limit_mw": 350_000,
        "power_default_mw": 350_000,
        "throttle": 1,
        "bar1_total": 32 * GIB,
        "link": {"generation": 1, "width": 16, "max_generation": 4, "max_width": 16},
        "processes": [],
        "problems": {},
    }
    return {**card, **changes}


def record(
    root: Path,
    *,
    cores: int = 16,
    smt: bool = True,
    e_cores: int = 0,
    model_name: str = "AMD EPYC 7313 16-Core Processor",
    flags: str = AVX2,
    allowed: str | None = None,
    total_gib: float = 256,
    available_gib: float = 240,
    gpus: list[dict[str, object]] | None = None,
    nvml: dict[str, object] | None = None,
    modules: list[str] | None = None,
    measured: dict[str, dict[str, object]] | None = None,
    free_gb: float = 900,
    environ: dict[str, str] | None = None,
) -> RecordedSystem:
    """Write a machine below `root` and return the System that reads it."""
    cpus = _cpus(root, cores=cores, smt=smt, e_cores=e_cores, allowed=allowed)
    blocks = [
        f"processor\t: {cpu}\nmodel name\t: {model_name}\nflags\t\t: {flags}\n"
        for cpu in range(cpus)
    ]
    put(root, "/proc/cpuinfo", "\n".join(blocks))
    put(
        root,
        "/proc/meminfo",
        f"MemTotal: {int(total_gib * GIB) // 1024} kB\nMemAvailable: {int(available_gib * GIB) // 1024} kB\n"
        "SwapTotal: 0 kB\n",
    )
    put(root, "/proc/sys/kernel/osrelease", "6.8.0-50-generic\n")
    put(root, "/etc/os-release", 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\n')
    put(
        root,
        "/proc/self/limits",
        "Max locked memory         8388608              8388608              bytes\n",
    )
    put(
        root,
        "/proc/self/mountinfo",
        "29 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n",
    )
    put(root, "/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    if nvml is None:
        nvml = (
            {**DRIVER, "gpus": gpus} if gpus else {"problem": "no_library", "detail": "not found"}
        )
    put(root, "/nvml.json", json.dumps(nvml))
    machine = {
        "modules": modules if modules is not None else (GPU_MODULES if gpus else CPU_MODULES),
        "disk": {
            "/": {"free_bytes": int(free_gb * 1e9), "total_bytes": 10**12, "free_inodes": 10**7}
        },
        "measured": measured or {},
    }
    put(root, "/machine.json", json.dumps(machine))
    home = {"HOME": "/home/owner", **(environ or {})}
    return RecordedSystem(Environ(home), root)


def _cpus(root: Path, *, cores: int, smt: bool, e_cores: int, allowed: str | None) -> int:
    """Topology: P cores first, siblings next to each other, then E cores; returns the CPU count."""
    threads = 2 if smt else 1
    fast = cores * threads
    total = fast + e_cores
    base = "/sys/devices/system/cpu"
    put(root, f"{base}/online", f"0-{total - 1}\n")
    put(
        root,
        "/proc/self/status",
        f"Cpus_allowed_list:\t{allowed or f'0-{total - 1}'}\nCapEff:\t0\n",
    )
    for cpu in range(total):
        first = cpu // threads * threads if cpu < fast else cpu
        last = first + threads - 1 if cpu < fast else cpu
        siblings = f"{first}-{last}" if last > first else f"{first}"
        put(root, f"{base}/cpu{cpu}/topology/core_cpus_list", siblings + "\n")
    if e_cores:
        put(root, "/sys/devices/cpu_core/cpus", f"0-{fast - 1}\n")
        put(root, "/sys/devices/cpu_atom/cpus", f"{fast}-{total - 1}\n")
    put(root, "/sys/devices/system/node/node0/cpulist", f"0-{total - 1}\n")
    return total


def link_files(root: Path, address: str, *, speed: str, width: int, most: int = 16) -> None:
    """A card's link in sysfs, behind one root port."""
    real = f"/sys/devices/pci0000:00/0000:00:01.0/{address}"
    for folder in (real, "/sys/devices/pci0000:00/0000:00:01.0"):
        put(root, f"{folder}/current_link_speed", f"{speed}\n")
        put(root, f"{folder}/max_link_speed", f"{speed}\n")
        put(root, f"{folder}/current_link_width", f"{width}\n")
        put(root, f"{folder}/max_link_width", f"{most}\n")
    link = root / f"sys/bus/pci/devices/{address}"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(root / real.lstrip("/"))


def cgroup_v2(root: Path, path: str, **files: str) -> None:
    """A v2 group that this process is in; keyword memory_max becomes memory.max."""
    put(root, "/proc/self/cgroup", f"0::{path}\n")
    put(root, "/sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
    for name, text in files.items():
        put(root, f"/sys/fs/cgroup{path}/{name.replace('_', '.', 1)}", text)


def _rig_3090_x16(root: Path) -> RecordedSystem:
    measured = {"h2d": {"bytes_per_s": 25.1e9, "generation": 4, "width": 16}, "ram": {"bytes_per_s": 136e9},
                "tier": {"bytes_per_s": 50e9}}  # fmt: skip
    return record(root, gpus=[gpu()], measured=measured)


def _rig_3090_x8_chipset(root: Path) -> RecordedSystem:
    link = {"generation": 1, "width": 4, "max_generation": 3, "max_width": 16}
    system = record(root, cores=8, total_gib=128, available_gib=123.5, gpus=[gpu(link=link)])
    link_files(root, "0000:01:00.0", speed="8.0 GT/s PCIe", width=4)
    return system


def _rig_4090_desktop(root: Path) -> RecordedSystem:
    total = 24_564 << 20
    card = gpu(
        "NVIDIA GeForce RTX 4090",
        capability=[8, 9],
        display_active=1,
        memory={"total": total, "free": total - 3 * GIB, "used": 3 * GIB, "reserved": 0},
        processes=[{"pid": 1200, "kind": "graphics", "used": 3 * GIB}],
    )
    put(root, "/proc/1200/comm", "firefox\n")
    return record(
        root, cores=8, e_cores=16, model_name="13th Gen Intel Core i9-13900K", gpus=[card],
        total_gib=192, available_gib=180,
    )  # fmt: skip


def _rig_5090_gen5(root: Path) -> RecordedSystem:
    total = 32_607 << 20
    card = gpu(
        "NVIDIA GeForce RTX 5090",
        capability=[12, 0],
        memory={"total": total, "free": total - 500 * (1 << 20), "used": 0, "reserved": 0},
        link={"generation": 1, "width": 16, "max_generation": 5, "max_width": 16},
    )
    return record(root, cores=16, flags=AVX512, gpus=[card], total_gib=192, available_gib=186)


def _rig_a5000_ecc(root: Path) -> RecordedSystem:
    total = 23_028 << 20
    card = gpu(
        "NVIDIA RTX A5000", memory={"total": total, "free": total - 400 * (1 << 20), "used": 0}
    )
    return record(root, cores=24, gpus=[card])


def _h200(root: Path) -> RecordedSystem:
    total = 143_771 << 20
    card = gpu(
        "NVIDIA H200", capability=[9, 0], memory={"total": total, "free": total - GIB, "used": 0}
    )
    measured = {
        "h2d": {"bytes_per_s": 54e9, "generation": 5, "width": 16},
        "ram": {"bytes_per_s": 75e9},
    }
    return record(
        root, cores=16, smt=False, flags=AVX512 + " hypervisor", gpus=[card], measured=measured,
        total_gib=125, available_gib=124.5, model_name="INTEL(R) XEON(R) PLATINUM 8581C",
    )  # fmt: skip


def _rig_gb10(root: Path) -> RecordedSystem:
    card = gpu(
        "NVIDIA GB10", capability=[12, 1], memory=None, link={}, problems={"memory": "NotSupported"}
    )
    return record(root, cores=20, smt=False, gpus=[card], total_gib=119, available_gib=110)


def _wsl2_4090(root: Path) -> RecordedSystem:
    card = gpu("NVIDIA GeForce RTX 4090", capability=[8, 9], power_limit_mw=None, persistence=None)
    measured = {"h2d": {"bytes_per_s": 22e9, "generation": 4, "width": 16,
                        "pin_limit_bytes": int(0.8 * (768 << 20))}}  # fmt: skip
    system = record(root, gpus=[card], measured=measured, total_gib=128, available_gib=126)
    put(root, "/proc/sys/kernel/osrelease", "6.18.33.2-microsoft-standard-WSL2\n")
    return system


def _proxmox_kvm64(root: Path) -> RecordedSystem:
    return record(
        root, cores=8, smt=False, model_name="Common KVM processor", flags="fpu sse2 hypervisor",
        gpus=[gpu()],
    )  # fmt: skip


def _docker_memlimit(root: Path) -> RecordedSystem:
    system = record(root, gpus=[gpu()], total_gib=256, available_gib=200)
    cgroup_v2(root, "/docker/4f2a", memory_max="8589934592", memory_current="0")
    put(root, "/.dockerenv", "")
    return system


def _zfs_nas_256(root: Path) -> RecordedSystem:
    system = record(root, gpus=[gpu()], total_gib=256, available_gib=120)
    put(
        root, "/proc/spl/kstat/zfs/arcstats",
        f"name type data\nsize 4 {100 * GIB}\nc_min 4 {8 * GIB}\n",
    )  # fmt: skip
    return system


def _driver_mismatch(root: Path) -> RecordedSystem:
    return record(root, nvml={"problem": "mismatch", "detail": "Driver/library version mismatch"})


def _laptop_no_gpu(root: Path) -> RecordedSystem:
    return record(root, cores=4, total_gib=16, available_gib=12, model_name="Intel Core i5-8250U")


def _turing_2080ti(root: Path) -> RecordedSystem:
    return record(root, gpus=[gpu("NVIDIA GeForce RTX 2080 Ti", capability=[7, 5])])


MACHINES: dict[str, Callable[[Path], RecordedSystem]] = {
    "rig-3090-x16": _rig_3090_x16,
    "rig-3090-x4-chipset": _rig_3090_x8_chipset,
    "rig-4090-desktop": _rig_4090_desktop,
    "rig-5090-gen5": _rig_5090_gen5,
    "rig-a5000-ecc": _rig_a5000_ecc,
    "h200-125gib": _h200,
    "rig-gb10": _rig_gb10,
    "wsl2-4090": _wsl2_4090,
    "proxmox-vm-kvm64": _proxmox_kvm64,
    "docker-memlimit": _docker_memlimit,
    "zfs-nas-256": _zfs_nas_256,
    "driver-mismatch": _driver_mismatch,
    "laptop-no-gpu": _laptop_no_gpu,
    "turing-2080ti": _turing_2080ti,
}


def phase(**changed):
    """A phase of a bench, of which nothing was disturbed."""
    return {"phase": "sweep", "seconds": 30.0, "other_cpus": 0.1, "cpus": 8, "swap_bytes": 0,
            "quota_throttled_ms": None, "ram_available_bytes": 8 << 30, "gpu": None, **changed}  # fmt: skip
