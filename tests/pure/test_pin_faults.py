"""Host memory that is refused midway: by a driver on paper, and by the kernel's own limits in a child."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from glm53_kernels.cuda import CudaKernelError
from glm53_server.engine import exl3
from glm53_server.engine.exl3_memory import GIB, HostLimits, explain, read_limits
from glm53_server.launch import LaunchError, load_engine
from glm53_server.moe.arena import ExpertArena, PinRefused, RecordLayout
from glm53ctl.errors import ChildExit
from glm53ctl.plan import (
    CpuPlan,
    EngineName,
    GpuPlan,
    LimitsPlan,
    ListenPlan,
    Mode,
    ModelPlan,
    Plan,
)

PAGE = mmap.PAGESIZE
LAYOUT = RecordLayout(
    layers=8, experts=4, gate_bytes=PAGE, up_bytes=PAGE, down_bytes=2 * PAGE
)  # fmt: skip


class Driver:
    """Pins on paper; after `room` bytes every registration is refused."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.pinned: dict[int, int] = {}

    def host_register(self, address: int, size_bytes: int) -> int:
        if sum(self.pinned.values()) + size_bytes > self.room:
            raise CudaKernelError("cudaHostRegister: out of memory")
        self.pinned[address] = size_bytes
        return address

    def host_unregister(self, address: int) -> None:
        del self.pinned[address]


def fill(layer: int, destination: torch.Tensor, pool: ThreadPoolExecutor) -> None:
    destination.fill_(layer)


def refused_at(driver: Any, layout: RecordLayout = LAYOUT) -> PinRefused:
    arena = ExpertArena(layout, driver, threads=1)
    arena.start_filling(fill, lambda done, total: None)
    with pytest.raises(PinRefused) as refused:
        arena.wait_layer(layout.layers - 1)
    arena.close()
    return refused.value


@pytest.mark.parametrize("layers", [0, 1, 5, 7])
def test_nothing_stays_pinned_wherever_the_driver_refuses(layers: int) -> None:
    driver = Driver(layers * LAYOUT.layer_bytes)
    err = refused_at(driver)
    assert (err.pinned_bytes, err.wanted_bytes) == (
        layers * LAYOUT.layer_bytes, LAYOUT.total_bytes,
    )  # fmt: skip
    assert driver.pinned == {}


def test_a_refusal_ends_the_filling() -> None:
    """114 GB are not read for nothing."""
    filled: list[int] = []
    driver: Any = Driver(LAYOUT.layer_bytes)
    arena = ExpertArena(LAYOUT, driver, threads=1)

    def slow(layer: int, destination: torch.Tensor, pool: ThreadPoolExecutor) -> None:
        filled.append(layer)
        if layer > 1:  # the second layer's refusal is known by then
            pool.submit(lambda: None).result()
            time.sleep(0.05)

    arena.start_filling(slow, lambda done, total: None)
    with pytest.raises(PinRefused):
        arena.wait_layer(7)
    arena.close()
    assert len(filled) < LAYOUT.layers


def test_a_load_that_is_closed_ends_with_the_layer_it_fills() -> None:
    driver: Any = Driver(1 << 40)
    arena = ExpertArena(LAYOUT, driver, threads=1)
    filled: list[int] = []
    begun = threading.Event()

    def closing(layer: int, destination: torch.Tensor, pool: ThreadPoolExecutor) -> None:
        filled.append(layer)
        begun.set()
        while not arena._closing:
            time.sleep(0.001)

    arena.start_filling(closing, lambda done, total: None)
    assert begun.wait(10)
    arena.close()
    assert filled == [0]
    assert driver.pinned == {}


def plan() -> Plan:
    return Plan(
        mode=Mode.EXACT, engine=EngineName.EXL3, model=ModelPlan("m", "m", 4096),
        listen=ListenPlan(), cpu=CpuPlan(threads=1, cpus=()), limits=LimitsPlan(),
        gpu=GpuPlan(
            uuid="", name="", reserve_bytes=0, elastic_bytes=0, stage_bytes=0, cache_slots=1
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("failure", "error_id", "words"),
    [
        (None, "MEM-002", "pinning stopped at"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB"),
            "MEM-003",
            "taken after sizing",
        ),
        (CudaKernelError("glm53_verify: out of memory"), "MEM-003", "taken after sizing"),
    ],
)
def test_the_supervisor_gets_an_exit_code_and_the_user_a_way_out(
    monkeypatch: pytest.MonkeyPatch, failure: Exception | None, error_id: str, words: str
) -> None:
    def load_model(*_: object) -> None:
        raise failure or refused_at(Driver(LAYOUT.layer_bytes))

    monkeypatch.setattr(exl3, "_options", lambda plan, spec: None)
    monkeypatch.setattr(exl3, "CudaKernels", lambda: None)
    monkeypatch.setattr(exl3, "load_model", load_model)
    with pytest.raises(LaunchError) as refused:
        load_engine(plan(), lambda phase, done, total: None)
    err = refused.value
    assert (err.code, err.error_id) == (ChildExit.NO_MEMORY, error_id)
    assert words in err.message
    assert err.hint
    assert err.code.permanent, "a restart would meet the same limit"


def run_child(kind: str) -> dict[str, Any]:
    script = Path(__file__).with_name("pin_child.py")
    run = subprocess.run(
        [sys.executable, str(script), kind], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_the_kernel_refuses_to_lock_more() -> None:
    said = run_child("memlock")
    assert said["pinned"] == 2 << 20, "two layers of 1 MiB fit a limit of 2.5 MiB"
    assert "locked memory is limited to 2560 KiB" in said["message"]
    assert "ulimit -l" in said["hint"]
    assert said["locked_after"] == 0


def test_the_kernel_refuses_to_map_the_arena() -> None:
    said = run_child("address_space")
    assert said["pinned"] == 0
    assert "could not be mapped" in said["message"]
    assert "address space" in said["message"]
    assert "ulimit -v" in said["hint"]


@pytest.mark.parametrize(
    ("limits", "pinned", "limit", "fix"),
    [
        (HostLimits(address_left=9 * GIB), 0, "leaves 9.00 GiB", "ulimit -v"),
        (HostLimits(address_left=9 * GIB), 5 * GIB, "driver", "doctor"),
        (HostLimits(cgroup_left=50 * GIB), 10 * GIB, "cgroup has 50.00 GiB left", "--memory"),
        (HostLimits(cgroup_left=95 * GIB), 10 * GIB, "driver", "doctor"),
        (HostLimits(available=20 * GIB), 50 * GIB, "20.00 GiB of host RAM", "glm53ctl plan"),
        (HostLimits(wsl=True, memlock=GIB), 50 * GIB, "WSL2", ".wslconfig"),
        (HostLimits(memlock=8 << 20), 0, "limited to 8192 KiB", "ulimit -l"),
        (HostLimits(memlock=200 * GIB), 0, "driver", "doctor"),
    ],
)  # fmt: skip
def test_the_limit_that_stands_below_is_named(
    limits: HostLimits, pinned: int, limit: str, fix: str
) -> None:
    found = explain(limits, pinned, 100 * GIB)
    assert limit in found[0]
    assert fix in found[1]


def test_limits_are_read_from_the_files_of_the_host(tmp_path: Path) -> None:
    for name, text in {
        "proc/meminfo": "MemTotal: 99 kB\nMemAvailable: 7 kB\n",
        "proc/self/cgroup": "0::/a/b\n",
        "proc/self/statm": "10 5 1",
        "proc/sys/kernel/osrelease": "5.15.0-microsoft-standard-WSL2\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/b/memory.current": "5\n",
        "sys/fs/cgroup/a/memory.max": "1000\n",
        "sys/fs/cgroup/a/memory.current": "400\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = read_limits(tmp_path)
    assert (found.available, found.cgroup_left, found.wsl) == (7 * 1024, 600, True)
    assert read_limits(tmp_path / "nothing").available is None
    assert read_limits().available is not None
