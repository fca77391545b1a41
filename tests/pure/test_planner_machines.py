"""The planner on recorded machines: golden decisions, and properties that hold for all machines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_machines import GIB, MACHINES

from glm53ctl import choose, planner, profile
from glm53ctl.checkpoint import FLASH, ModelFacts
from glm53ctl.cpulist import format_cpulist
from glm53ctl.env import Environ
from glm53ctl.errors import NoFit
from glm53ctl.hardware import (
    Cpu,
    Driver,
    DriverState,
    Gpu,
    Hardware,
    Host,
    Link,
    MemoryLimit,
    Ram,
)
from glm53ctl.paths import user_paths
from glm53ctl.plan import EngineName, Mode, plan_from_json
from glm53ctl.probes import machine, measure

GOLDEN = Path(__file__).parent / "golden" / "plans.json"
HOME = Environ({"HOME": "/nonexistent"})
PATHS = user_paths(HOME)


def decision(name: str, root: Path) -> dict[str, object]:
    """What the planner decided for a recorded machine, in few words."""
    system = MACHINES[name](root)
    hardware = machine.probe(system)
    gpu = hardware.gpus[0] if hardware.gpus else None
    hardware = measure.measure(system, hardware, gpu)
    situation = choose.survey(choose.PlanOptions(), system=system)
    outcome = choose.decide(replace(situation, hardware=hardware))
    plan = outcome.plan
    return {
        "mode": plan.mode if plan else None,
        "threads": plan.cpu.threads if plan else None,
        "cpus": format_cpulist(plan.cpu.cpus) if plan else None,
        "budgets_mib": {
            f"{item.pool} {item.name}": item.bytes >> 20 for item in (plan.budgets if plan else ())
        },
        "why": {item.key: f"{item.value}: {item.why}" for item in (plan.choices if plan else ())},
        "rejections": {item.mode: item.reason for item in outcome.rejections},
        "expected": {item.mode: item.text for item in outcome.predictions},
    }


@pytest.mark.parametrize("name", MACHINES)
def test_decisions_on_recorded_machines(name, tmp_path):
    """`python scripts/make_golden.py` rewrites the file; review the difference."""
    assert decision(name, tmp_path) == json.loads(GOLDEN.read_text(encoding="utf-8"))[name]


def hardware(
    ram_bytes: int, vram_bytes: int | None, *, cores: int = 16, limit: int | None = None
) -> Hardware:
    """A machine of given sizes, all of it free."""
    limits = (MemoryLimit("/app", limit, limit),) if limit else ()
    gpus = ()
    if vram_bytes is not None:
        gpus = (
            Gpu(
                0, "GPU-1", "Card", capability=(8, 6), total_bytes=vram_bytes, free_bytes=vram_bytes
            ),
        )
    cpus = tuple(range(cores))
    return Hardware(
        cpu=Cpu("x86_64", "CPU", frozenset({"avx2", "fma", "f16c"}), cpus, cpus, cpus),
        ram=Ram(ram_bytes, ram_bytes, limits=limits),
        driver=Driver(DriverState.OK if gpus else DriverState.ABSENT, "580.65.06", (13, 0)),
        host=Host("Linux", "6.8"),
        gpus=gpus,
        engines=frozenset({"torch", "exllamav3", "transformers", "fastapi"}),
    )


def consider(machine_: Hardware, facts: ModelFacts = FLASH, **flags: object) -> planner.Outcome:
    found = profile.load(flags, environ=HOME)
    return planner.consider(machine_, planner.Model(facts, "/model"), found, PATHS)


sizes = st.integers(0, 512 * GIB)
modes = st.sampled_from(["auto", "fast", "exact", "cpu"])


@given(ram=sizes, vram=st.none() | st.integers(0, 192 * GIB), limit=st.none() | sizes, mode=modes)
def test_a_plan_never_exceeds_a_budget(ram, vram, limit, mode):
    plan = consider(hardware(ram, vram, limit=limit or None), mode=mode).plan
    if plan is None:
        return
    usable = min(ram, limit) if limit else ram
    assert planner.budget_total(plan.budgets, "ram") <= usable
    assert all(item.bytes >= 0 for item in plan.budgets)
    if plan.gpu:
        assert planner.budget_total(plan.budgets, "vram") <= (vram or 0)
        assert plan.gpu.reserve_bytes <= (vram or 0)


@given(
    ram=sizes, vram=st.none() | st.integers(0, 192 * GIB), more=st.integers(0, 64 * GIB), mode=modes
)
def test_more_memory_never_takes_a_plan_away(ram, vram, more, mode):
    if consider(hardware(ram, vram), mode=mode).plan is None:
        return
    assert consider(hardware(ram + more, vram), mode=mode).plan is not None
    if vram is not None:
        assert consider(hardware(ram, vram + more), mode=mode).plan is not None


def slots(outcome: planner.Outcome) -> int:
    assert outcome.plan is not None
    cache = next(item for item in outcome.plan.budgets if item.name == "expert cache")
    return cache.bytes // FLASH.expert_bytes


@given(vram=st.integers(20 * GIB, 150 * GIB), more=st.integers(0, 16 * GIB))
def test_more_vram_never_means_fewer_cached_experts(vram, more):
    small, large = (
        consider(hardware(256 * GIB, size), mode="exact") for size in (vram, vram + more)
    )
    assert slots(small) <= slots(large) <= FLASH.moe_layers * FLASH.experts


@given(ram=sizes, vram=st.none() | st.integers(0, 192 * GIB), mode=modes)
def test_every_mode_is_a_plan_or_a_reason(ram, vram, mode):
    outcome = consider(hardware(ram, vram), mode=mode)
    rejected = {item.mode for item in outcome.rejections}
    tried = set(Mode) - {Mode.AUTO} if mode == "auto" else {Mode(mode)}
    assert rejected <= tried
    assert all(item.reason for item in outcome.rejections)
    if outcome.plan is None:
        assert rejected == tried
        with pytest.raises(NoFit) as caught:
            outcome.chosen()
        assert all(item.reason in caught.value.message for item in outcome.rejections)
    else:
        assert outcome.plan.mode in tried - rejected
        assert outcome.plan.mode is not Mode.AUTO


@given(ram=st.integers(140 * GIB, 512 * GIB), vram=st.integers(20 * GIB, 150 * GIB))
def test_plans_survive_their_file(ram, vram):
    plan = consider(hardware(ram, vram)).chosen()
    assert plan_from_json(plan.to_json()) == plan
    assert plan_from_json(plan.to_json()).fingerprint() == plan.fingerprint()


def test_every_automatic_choice_has_a_reason():
    plan = consider(hardware(256 * GIB, 24 * GIB)).chosen()
    assert {item.key for item in plan.choices} >= {
        "mode",
        "gpu.select",
        "vram.reserve_gib",
        "cpu.cpus",
    }
    assert all(item.why and item.origin for item in plan.choices)
    assert all(item.why for item in plan.budgets)


def test_a_setting_of_the_user_is_named_as_the_origin():
    plan = consider(hardware(256 * GIB, 24 * GIB), mode="exact", vram_reserve_bytes=2).chosen()
    origins = {item.key: item.origin for item in plan.choices}
    assert origins["mode"] == "flag: --mode"
    assert origins["vram.reserve_gib"] == "flag: --vram-reserve-bytes"
    assert origins["cpu.cpus"] == "auto"


def test_cpu_by_wish_serves_what_auto_would_not(tmp_path):
    large = hardware(300 * GIB, None)
    assert consider(large).plan is None
    assert consider(large, mode="cpu").chosen().engine is EngineName.CPU


def test_without_an_engine_the_reason_says_what_to_install():
    bare = replace(hardware(256 * GIB, 24 * GIB), engines=frozenset())
    reasons = [item.reason for item in consider(bare).rejections]
    assert "exllamav3, fastapi, torch not installed" in reasons[0]


def test_beyond_loopback_a_key_file_is_planned():
    open_ = consider(hardware(256 * GIB, 24 * GIB), host="0.0.0.0").chosen()
    assert open_.listen.api_key_file == str(PATHS.state_dir / "default/api-key")
    assert open_.url == "http://127.0.0.1:8080"  # D-08: a URL a human can open
    assert consider(hardware(256 * GIB, 24 * GIB)).chosen().listen.api_key_file is None


def test_the_reserve_grows_with_a_desktop():
    card = hardware(256 * GIB, 24 * GIB)
    from glm53ctl.hardware import GpuProcess

    busy = replace(
        card.gpus[0],
        display_active=True,
        processes=(GpuProcess(1, "graphics", 4 * GIB, "firefox"),),
    )
    plan = consider(replace(card, gpus=(busy,))).chosen()
    assert plan.gpu is not None
    assert plan.gpu.reserve_bytes == 2 * GIB


def test_exact_goes_first_where_it_is_no_slower():
    from glm53ctl.hardware import Measured

    card = hardware(256 * GIB, 44 * GIB, cores=2)
    measured = replace(card, measured=Measured(h2d_bytes_per_s=54e9, ram_read_bytes_per_s=90e9))
    plan = consider(measured).chosen()
    assert plan.mode is Mode.EXACT
    assert "no slower than fast" in next(item.why for item in plan.choices if item.key == "mode")
    small = replace(hardware(256 * GIB, 24 * GIB), measured=Measured(h2d_bytes_per_s=25e9))
    assert consider(small).chosen().mode is Mode.FAST


def test_a_card_that_holds_every_expert_leaves_nothing_to_the_cpu():
    large = hardware(256 * GIB, 141 * GIB)
    outcome = consider(large)
    assert outcome.chosen().mode is Mode.EXACT
    assert "holds every expert" in outcome.rejections[0].reason
    assert consider(large, mode="fast").chosen().mode is Mode.FAST


def test_a_vram_limit_makes_a_large_card_plan_like_a_small_one():
    small = consider(hardware(256 * GIB, 24 * GIB), mode="exact")
    capped = consider(hardware(256 * GIB, 141 * GIB), mode="exact", vram_limit_bytes=24)
    assert slots(small) == slots(capped)


def test_chunk_and_speed_are_about_the_card_that_was_chosen():
    """Card 0 has sixteen lanes, card 1 one: what holds for card 1 alone holds for it beside card 0."""
    one = hardware(256 * GIB, 24 * GIB)
    wide, narrow = (
        replace(one.gpus[0], uuid=f"GPU-{i}", index=i, link=Link(generation, lanes))
        for i, (generation, lanes) in enumerate(((4, 16), (3, 1)))
    )
    both, alone = replace(one, gpus=(wide, narrow)), replace(one, gpus=(narrow,))
    beside = consider(both, mode="exact", gpu="GPU-1")
    by_itself = consider(alone, mode="exact", gpu="GPU-1")
    assert beside.plan is not None
    assert beside.plan.gpu is not None
    assert beside.plan.gpu.uuid == "GPU-1"
    assert beside.predictions == by_itself.predictions
    assert by_itself.plan is not None
    assert beside.plan.choices == by_itself.plan.choices
