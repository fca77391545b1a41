"""What a running server gives back when it is replaced."""

from __future__ import annotations

from dataclasses import replace

from glm53ctl.hardware import (
    Cpu,
    Driver,
    DriverState,
    Gpu,
    GpuProcess,
    Hardware,
    Host,
    MemoryLimit,
    Ram,
)
from glm53ctl.plan import (
    Budget,
    CpuPlan,
    EngineName,
    GpuPlan,
    ListenPlan,
    Mode,
    ModelPlan,
    Plan,
)
from glm53ctl.successor import Held, given_back, held

GIB = 1 << 30
CARD = Gpu(0, "GPU-a", "card", total_bytes=24 * GIB, free_bytes=2 * GIB)
HARDWARE = Hardware(
    Cpu("x86_64", "cpu", frozenset(), (0,), (0,), (0,)),
    Ram(64 * GIB, 10 * GIB, limits=(MemoryLimit("/a", 32 * GIB, 4 * GIB),)),
    Driver(DriverState.OK),
    Host("Debian", "6.1"),
    gpus=(CARD, replace(CARD, index=1, uuid="GPU-b")),
)
CPU_PLAN = Plan(Mode.CPU, EngineName.CPU, ModelPlan("/m", "m", 1), ListenPlan(), CpuPlan(1, (0,)))
GPU_PLAN = replace(
    CPU_PLAN,
    gpu=GpuPlan("GPU-a", "card", GIB, 0, 0),
    budgets=(Budget("vram", "reserve", GIB, ""), Budget("vram", "weights", 5 * GIB, "")),
)


def test_ram_comes_back_to_the_host_and_its_limits():
    ram = given_back(HARDWARE, Held(20 * GIB)).ram
    assert (ram.available_bytes, ram.limits[0].headroom_bytes) == (30 * GIB, 24 * GIB)
    ram = given_back(HARDWARE, Held(90 * GIB)).ram
    assert (ram.available_bytes, ram.limits[0].headroom_bytes) == (64 * GIB, 32 * GIB)


def test_vram_comes_back_to_the_card_of_the_plan_only():
    gpus = given_back(HARDWARE, Held(0, 9 * GIB, "GPU-a")).gpus
    assert [gpu.free_bytes for gpu in gpus] == [11 * GIB, 2 * GIB]
    gpus = given_back(HARDWARE, Held(0, 90 * GIB, "GPU-a")).gpus
    assert gpus[0].free_bytes == 24 * GIB


def test_vram_is_what_the_driver_tells_or_else_what_was_planned():
    assert held(HARDWARE, CPU_PLAN, frozenset({7}), 3) == Held(3)
    assert held(HARDWARE, GPU_PLAN, frozenset({7}), 3) == Held(3, 5 * GIB, "GPU-a")
    ours, other = GpuProcess(7, "compute", 8 * GIB, "us"), GpuProcess(8, "compute", GIB, "them")
    told = replace(HARDWARE, gpus=(replace(CARD, processes=(ours, other)),))
    assert held(told, GPU_PLAN, frozenset({7}), 3) == Held(3, 8 * GIB, "GPU-a")
