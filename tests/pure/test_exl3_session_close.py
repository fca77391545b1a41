"""The end of a session: everything is given back in order, whatever a lost device says to each of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from exl3_stage import generator, make_session

from glm53_server.engine import exl3_session
from glm53_server.engine.exl3_session import Session

ORDER = ["queue", "device", "hooks", "heat", "look-ahead", "lane", "model", "arena"]
THREADS = {"look-ahead", "lane", "arena"}


def staged(monkeypatch: pytest.MonkeyPatch, failing: set[str], done: list[str]) -> Session:
    session = make_session(monkeypatch)

    def part(name: str, answer: bool = True) -> Any:
        def call(*_: object) -> bool:
            done.append(name)
            if name in failing:
                raise RuntimeError(f"{name}: an illegal memory access")
            return answer

        return call

    monkeypatch.setattr(generator(), "clear_queue", part("queue"))
    monkeypatch.setattr(torch.cuda, "synchronize", part("device"))
    monkeypatch.setattr(exl3_session, "detach", part("hooks"))
    session.loaded.model.unload = part("model")
    session.loaded.arena = SimpleNamespace(close=part("arena"))  # type: ignore[assignment]
    tiers: Any = SimpleNamespace(
        heat_file="heat.bin",
        residency=SimpleNamespace(save_heat=part("heat")),
        lookahead=SimpleNamespace(close=part("look-ahead")),
        cpu_lane=SimpleNamespace(close=part("lane")),
    )
    session.tiers = tiers
    return session


def test_a_healthy_end_gives_all_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    staged(monkeypatch, set(), done).close()
    assert done == ORDER


@pytest.mark.parametrize("failing", [{name} for name in ORDER] + [set(ORDER)], ids="+".join)
def test_no_failure_keeps_the_rest(monkeypatch: pytest.MonkeyPatch, failing: set[str]) -> None:
    done: list[str] = []
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        staged(monkeypatch, failing, done).close()
    assert done == ORDER
    assert set(done) >= THREADS


@pytest.mark.parametrize(("tiers", "arena"), [(True, False), (False, True), (False, False)])
def test_what_is_not_there_is_not_given_back(
    monkeypatch: pytest.MonkeyPatch, tiers: bool, arena: bool
) -> None:
    done: list[str] = []
    session = staged(monkeypatch, set(), done)
    if not tiers:
        session.tiers = None
    if not arena:
        session.loaded.arena = None
    session.close()
    gone = ({"heat", "look-ahead", "lane"} if not tiers else set()) | (
        set() if arena else {"arena"}
    )
    assert done == [name for name in ORDER if name not in gone]


def test_heat_that_cannot_be_written_is_said_and_a_lost_thread_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []
    session = staged(monkeypatch, set(), done)

    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    parts: Any = session.tiers
    parts.residency.save_heat, parts.cpu_lane.close = full, lambda: False
    session.close()
    assert done[-2:] == ["model", "arena"]
    assert "No space left" in caplog.text
    assert "never came back" in caplog.text
