"""`plan --what-if`: a changed machine is planned like a real one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_planner_machines import GIB, consider, hardware

from glm53ctl import drivers
from glm53ctl.cards import CARDS, NOT_HERE, assumptions, named_card
from glm53ctl.errors import UsageError
from glm53ctl.hardware import Hardware, Measured, MemoryLimit
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
        ("ram=0GiB", "not a size"),
        ("vram=0.0GB", "not a size"),
        ("ram=65537GiB", "not a size up to 65536 GiB"),
        (f"ram={'9' * 400}GiB", r"'9{40}\.\.\.' is not a size"),
        ("ram=\u0662\u0665\u0666GiB", "not a size"),
        ("ram=256", "not a size"),
        ("pcie=5x0", "a generation and a width"),
        ("pcie=5x3", "a generation and a width"),
        ("pcie=5x16384", "a generation and a width"),
        ("pcie=\u0664x16", "a generation and a width"),
        ("cores=\u00b2", "a number of physical cores"),
        ("cores=1.5", "a number of physical cores"),
        ("cores=1025", "a number of physical cores up to 1024"),
        (f"cores={'9' * 5000}", r"cores='9{40}\.\.\.': a number"),
        ("dram=0GB/s", "a rate"),
        ("dram=-1GB/s", "a rate"),
        (f"dram={'9' * 400}GB/s", "a rate"),
        ("ram=64GiB,ram=256GiB", "changes ram twice"),
        ("", "not a part"),
        (",", "not a part"),
    ],
)
def test_what_cannot_be_read_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        changed(hardware(256 * GIB, 24 * GIB), text)


def one_of(*edges: str) -> st.SearchStrategy[str]:
    return st.one_of(st.sampled_from(edges), st.text("0123456789.xGiB/s", max_size=9))


@given(
    gpu=st.sampled_from(tuple(CARDS)),
    ram=one_of("0.000000001GiB", "1GB", "64 GiB", "65536GiB"),
    vram=one_of("0.001GB", "5GiB", "9GiB", "65536GiB"),
    pcie=one_of("1x1", "3x4", "6x16", "5x0"),
    cores=one_of("1", "2", "1024"),
    dram=one_of("0.1GB/s", "0.05GB/s", "100000GB/s"),
)
@settings(max_examples=60, deadline=None)
def test_every_machine_is_planned_or_refused(**parts: str):
    machine = bare()
    for key, value in parts.items():
        with suppress(UsageError):
            machine = changed(machine, f"{key}={value}")
    for mode in ("auto", *Mode):
        outcome = consider(machine, mode=mode)
        for item in outcome.predictions:
            assert 0 <= item.low_tokens_per_s <= item.high_tokens_per_s < float("inf")


def test_a_gpu_change_needs_a_gpu():
    with pytest.raises(UsageError, match="needs a GPU"):
        changed(hardware(256 * GIB, None), "pcie=4x16")


def bare() -> Hardware:
    """A machine without a card, its driver and its software."""
    found = hardware(64 * GIB, None)
    return replace(found, engines=frozenset(), measured=Measured(tier_bytes_per_s=40e9))


@pytest.mark.parametrize("name", CARDS)
def test_every_known_card_is_planned_for_on_a_machine_without_one(name):
    card = CARDS[name]
    assert consider(bare()).plan is None
    machine = changed(bare(), f"gpu={name},ram=256GiB")
    gpu = machine.gpus[0]
    assert gpu.capability is not None, "drivers.py has no generation for this name"
    assert gpu.capability >= drivers.MIN_CAPABILITY
    assert 0 < (gpu.free_bytes or 0) < (gpu.total_bytes or 0) == card.vram_mib << 20
    plan = consider(machine, mode="exact").chosen()
    assert (plan.gpu and plan.gpu.uuid, plan.gpu and plan.gpu.name) == (NOT_HERE, card.name)
    assert assumptions(machine)[0].startswith(f"{card.name} is not here: ")


def test_a_card_that_is_not_here_has_no_measured_rate():
    measured = Measured(h2d_bytes_per_s=3e9, h2d_replays=2, ram_read_bytes_per_s=60e9)
    here = replace(hardware(256 * GIB, 24 * GIB), measured=measured)
    machine = changed(here, "gpu=RTX3090")
    assert machine.measured == Measured(ram_read_bytes_per_s=60e9)
    assert [gpu.uuid for gpu in machine.gpus] == [NOT_HERE]
    assert {item.basis for item in consider(machine).predictions} >= {"link assumed, RAM measured"}


def test_a_card_comes_before_what_is_changed_of_it():
    machine = changed(bare(), "pcie=3x4,vram=12GiB,gpu=rtx 5090")
    gpu = machine.gpus[0]
    assert gpu.link is not None
    assert (gpu.name, gpu.total_bytes) == ("NVIDIA GeForce RTX 5090", 12 * GIB)
    assert (gpu.link.max_generation, gpu.link.width) == (3, 4)


@pytest.mark.parametrize(
    "name", ["3090", "rtx-3090", "GeForce RTX 3090", "NVIDIA GeForce RTX 3090"]
)
def test_a_card_is_known_by_what_people_call_it(name):
    assert named_card(name) is CARDS["RTX3090"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("RTX309", "did you mean RTX3090?"),
        ("Radeon", "one of RTX3090, "),
        ("", "one of RTX3090, "),
        ("nvidia", "one of "),
    ],
)
def test_a_card_that_nobody_knows_is_refused_with_those_that_are(name, hint):
    with pytest.raises(UsageError, match="not a card that is known here") as refused:
        changed(bare(), f"gpu={name}")
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize(("cores", "words"), [(1, "1 core and"), (12, "12 cores and")])
def test_what_stands_beside_a_card_that_is_not_here_is_told(cores, words):
    (line,) = assumptions(changed(bare(), f"gpu=RTX3090,ram=96GiB,cores={cores}"))
    assert f"beside it {words} 96.0 GiB of RAM, this machine's unless" in line
    assert assumptions(hardware(256 * GIB, 24 * GIB)) == []


def test_memory_that_is_not_here_is_not_called_this_machine_s():
    def limits(machine: Hardware) -> set[str]:
        reasons = (item.reason for item in consider(machine, mode="cpu").rejections)
        return {reason.partition("(limited by ")[2].rstrip(")") for reason in reasons}

    here = replace(bare(), engines=frozenset({"torch", "transformers", "fastapi"}))
    assert limits(here) == {"this machine"}
    (limit,) = limits(changed(here, "ram=48GiB"))
    assert limit.startswith("--what-if, less the ")
    held = MemoryLimit("/slice", 8 * GIB, 8 * GIB)
    inside = replace(here, ram=replace(here.ram, limits=(held,)))
    assert limits(changed(inside, "ram=96GiB")) == {"/slice"}
