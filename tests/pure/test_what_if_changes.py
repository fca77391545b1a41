"""`plan --what-if`: a changed machine is planned like a real one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_planner_machines import GIB, consider, hardware

from glm53ctl.errors import UsageError
from glm53ctl.hardware import Measured
from glm53ctl.plan import Mode
from glm53ctl.what_if import changed


def test_more_ram_makes_a_plan_possible():
    small = hardware(64 * GIB, 24 * GIB)
    assert consider(small).plan is None
    assert consider(changed(small, "ram=256GiB")).chosen().mode is Mode.FAST


def test_used_memory_stays_used():
    busy = hardware(64 * GIB, 24 * GIB)
    busy = replace(busy, ram=replace(busy.ram, available_bytes=40 * GIB))
    assert changed(busy, "ram=128GiB").ram.available_bytes == 104 * GIB


def test_a_new_slot_forgets_the_old_measurement():
    slow = replace(hardware(256 * GIB, 24 * GIB), measured=Measured(h2d_bytes_per_s=3e9))
    fast = changed(slow, "pcie=5x16,dram=200GB/s")
    before, after = (
        next(item for item in consider(machine).predictions if item.mode is Mode.EXACT)
        for machine in (slow, fast)
    )
    assert after.low_tokens_per_s > 3 * before.high_tokens_per_s
    assert fast.measured.ram_read_bytes_per_s == 200e9


def test_cores_and_vram():
    machine = changed(hardware(256 * GIB, 24 * GIB, cores=4), "cores=24,vram=32GiB")
    plan = consider(machine).chosen()
    assert plan.cpu.threads == 22
    assert machine.gpus[0].free_bytes == 32 * GIB


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rma=1GiB", "not a part that can be changed"),
        ("ram=lots", "not a size"),
        ("pcie=9x16", "a generation and a width"),
        ("pcie=16", "a generation and a width"),
        ("cores=0", "a number of physical cores"),
        ("dram=fast", "a rate"),
    ],
)
def test_what_cannot_be_read_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        changed(hardware(256 * GIB, 24 * GIB), text)


def test_a_gpu_change_needs_a_gpu():
    with pytest.raises(UsageError, match="needs a GPU"):
        changed(hardware(256 * GIB, None), "pcie=4x16")
