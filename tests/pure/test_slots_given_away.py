"""Whoever gives slots or their memory away waits first for the copies that were looked ahead into them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from exl3_stage import make_session, request

from glm53_server.engine import exl3, exl3_session
from glm53_server.engine.exl3_session import Session
from glm53_server.moe.layer import ExpertTiers


def session_with_tiers(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> Session:
    session = make_session(monkeypatch)

    def noted(name: str, result: int = 0) -> Any:
        return lambda *_, **__: calls.append(name) or result

    everything: Any = SimpleNamespace(
        layout=SimpleNamespace(layers=0), in_prefill=False, passing=False, capacity=8, given_up=3,
        end_pass=lambda: None, begin_pass=noted("begin_pass"),
    )  # fmt: skip
    session.tiers = ExpertTiers(everything, everything, stage_rows=16)
    ahead: Any = SimpleNamespace(drain=noted("drain"), new_pass=lambda rows: None)
    session.tiers.lookahead = ahead
    monkeypatch.setattr(exl3_session, "make_room", noted("make_room", 5 << 20))
    monkeypatch.setattr(exl3_session, "take_back", noted("take_back"))
    return session


def test_memory_is_given_back_after_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    told = session_with_tiers(monkeypatch, calls).out_of_memory()
    assert calls == ["drain", "make_room"]
    assert "gave 5 MiB back" in told.message


def test_memory_is_taken_again_after_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    session_with_tiers(monkeypatch, calls).add(request(), None)
    assert calls == ["drain", "take_back"]


def test_a_prompt_is_staged_after_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    session = session_with_tiers(monkeypatch, calls)
    assert session.tiers is not None
    session.tiers.on_pass(100, cache_only=True)
    assert calls == ["drain", "begin_pass"]


def test_memory_stays_where_copies_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    session = session_with_tiers(monkeypatch, calls)
    assert session.tiers is not None

    def stuck() -> None:
        raise RuntimeError("copies that were looked ahead did not end")

    ahead: Any = SimpleNamespace(drain=stuck)
    session.tiers.lookahead = ahead
    with pytest.raises(RuntimeError, match="did not end"):
        session.out_of_memory()
    assert calls == []


def test_a_load_that_fails_late_ends_the_copy_thread_before_its_memory_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []

    def closing(name: str) -> Any:
        return SimpleNamespace(close=lambda: closed.append(name))

    def refuse(*_: object) -> None:
        raise RuntimeError("out of memory")

    tiers = SimpleNamespace(lookahead=closing("look-ahead"), residency=None)
    monkeypatch.setattr(exl3, "_cpu_lane", lambda *_: closing("lane"))
    monkeypatch.setattr(exl3, "build_tiers", lambda *_, **__: tiers)
    monkeypatch.setattr(exl3, "set_split", refuse)
    loaded: Any = SimpleNamespace(arena=closing("arena"))
    gpu = SimpleNamespace(
        reserve_bytes=0, elastic_bytes=0, stage_bytes=0, vram_limit_bytes=None, cache_slots=1,
        lookahead_experts=1, heat_file="",
    )  # fmt: skip
    plan: Any = SimpleNamespace(gpu=gpu, cpu_tier=SimpleNamespace(frozen_split=False))
    kernels: Any = None
    with pytest.raises(RuntimeError, match="out of memory"):
        exl3._tiers(loaded, kernels, plan, None)
    assert closed == ["look-ahead", "lane", "arena"]


def test_a_session_that_cannot_begin_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    def closing(name: str) -> Any:
        return SimpleNamespace(close=lambda: not closed.append(name))

    def full(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(exl3, "_options", lambda plan, spec: SimpleNamespace(cache_tokens=256))
    monkeypatch.setattr(exl3, "CudaKernels", lambda: object())
    monkeypatch.setattr(exl3, "load_model", lambda *_: SimpleNamespace(arena=closing("arena")))
    tiers = SimpleNamespace(lookahead=closing("look-ahead"), cpu_lane=closing("lane"))
    monkeypatch.setattr(exl3, "_tiers", lambda *_: tiers)
    monkeypatch.setattr(exl3, "Session", full)
    plan: Any = SimpleNamespace(
        gpu=object(), engine=exl3.EngineName.EXL3, limits=SimpleNamespace(max_batch=1, chunk_tokens=1),
        model=SimpleNamespace(load_format="checkpoint"),
    )  # fmt: skip
    with pytest.raises(exl3.VramTaken, match="taken after sizing"):
        exl3.load(plan, lambda phase, done, total: None)
    assert closed == ["look-ahead", "lane", "arena"]
