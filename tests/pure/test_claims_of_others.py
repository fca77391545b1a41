"""What a loading instance will still take is not there for another one."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from test_successor_memory import CPU_PLAN, GIB, GPU_PLAN, HARDWARE

from glm53ctl import claims
from glm53ctl.hardware import GpuProcess
from glm53ctl.paths import Paths
from glm53ctl.plan import Budget
from glm53ctl.successor import Held
from glm53ctl.supervisor.state import Instance, try_lock, write_record

PLAN = replace(GPU_PLAN, budgets=(*GPU_PLAN.budgets, Budget("ram", "experts", 6 * GIB, "")))


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(*(tmp_path / name for name in ("config.toml", "state", "cache", "run", "models")))


def loading(paths: Paths, name: str, phase: str | None, *, locked: bool = True) -> int | None:
    instance = Instance(name, paths.instance_dir(name), paths.runtime_dir / f"{name}.sock")
    instance.create()
    instance.plan_path.write_text(PLAN.to_json())
    if phase is not None:
        keys = (
            "instance mode engine model fingerprint url supervisor child phase phase_s progress health "
            "health_words uptime_s exit_code restarts crashes ever_ready retry_in_s last_failure"
        )
        write_record(instance, {**dict.fromkeys(keys.split()), "phase": phase})
    return try_lock(instance.lock_path) if locked else None


@pytest.mark.parametrize("phase", ["starting", "backoff", None])
def test_what_is_planned_and_not_yet_held_is_not_there(paths: Paths, phase: str | None):
    assert loading(paths, "left", phase) is not None
    found = claims.beside(HARDWARE, paths, "right")
    assert found.ram.available_bytes == 4 * GIB
    assert found.ram.limits[0].headroom_bytes == 0
    assert [gpu.free_bytes for gpu in found.gpus] == [0, 2 * GIB]
    assert "'left', loading" in found.ram.evidence[-1].source
    assert claims.beside(HARDWARE, paths, "left") == HARDWARE


def test_who_serves_or_has_ended_claims_nothing(paths: Paths):
    loading(paths, "ready", "ready")
    loading(paths, "dead", "starting", locked=False)
    loading(paths, "odd", "starting")
    (paths.instance_dir("odd") / "plan.json").write_text("[]")
    assert claims.beside(HARDWARE, paths, "mine") == HARDWARE


def test_what_is_held_by_now_counts_once():
    card = replace(HARDWARE.gpus[0], processes=(GpuProcess(7, "compute", 3 * GIB, "python"),))
    hardware = replace(HARDWARE, gpus=(card,))
    assert claims.missing(PLAN, hardware, frozenset({7}), 2 * GIB) == Held(
        4 * GIB, 2 * GIB, "GPU-a"
    )
    assert claims.missing(PLAN, hardware, frozenset({8}), 9 * GIB) == Held(0, 5 * GIB, "GPU-a")
    assert claims.missing(CPU_PLAN, hardware, frozenset(), 0) == Held(0)


def test_starts_take_turns(tmp_path: Path):
    order: list[str] = []

    def second() -> None:
        with claims.turn(tmp_path / "state"):
            order.append("second")

    with claims.turn(tmp_path / "state"):
        waiting = threading.Thread(target=second)
        waiting.start()
        time.sleep(0.2)
        order.append("first")
    waiting.join(10)
    assert order == ["first", "second"]
