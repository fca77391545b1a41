"""Recording what a model picks: whole decode steps of so many streams, as the replay reads them."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from glm53_server.engine.base import Done, EngineError, Event, Failed, FinishReason, GenRequest
from glm53_server.moe.routing_trace import RoutingRecorder
from glm53ctl.paths import tiny_checkpoint
from glm53ctl.plan import CpuPlan, EngineName, ListenPlan, Mode, ModelPlan, Plan

BENCH = str(Path(__file__).resolve().parents[2] / "bench")
LAYERS, PICKS = 3, 4


def picks_of(step: int, layer: int, rows: int) -> torch.Tensor:
    first = torch.arange(PICKS) + 10 * layer + 100 * step
    return torch.stack([first + 50 * row for row in range(rows)])


def steps(recorder: RoutingRecorder, rows: list[int], layers: int = LAYERS) -> None:
    for number, count in enumerate(rows):
        for layer in range(layers):
            recorder(layer, picks_of(number, layer, count))


def test_only_steps_with_all_streams_are_kept() -> None:
    recorder = RoutingRecorder(8, LAYERS, 2)
    steps(recorder, [1, 2, 2, 1, 2])
    found = recorder.recorded()
    assert found.dtype == torch.int16
    assert found.shape == (3, LAYERS, 2, PICKS)
    for at, number in enumerate((1, 2, 4)):
        for layer in range(LAYERS):
            assert torch.equal(found[at, layer].long(), picks_of(number, layer, 2))


def test_it_is_full_with_the_first_step_that_has_no_room() -> None:
    recorder = RoutingRecorder(2, LAYERS, 1)
    steps(recorder, [1, 1])
    assert not recorder.full
    steps(recorder, [1, 1])
    assert recorder.full
    assert len(recorder.recorded()) == 2


def test_a_step_that_was_broken_off_is_left_out() -> None:
    recorder = RoutingRecorder(4, LAYERS, 1)
    steps(recorder, [1])
    steps(recorder, [1], layers=2)
    steps(recorder, [1])
    assert len(recorder.recorded()) == 2


def test_nothing_seen_is_an_error() -> None:
    recorder = RoutingRecorder(4, LAYERS, 4)
    steps(recorder, [1])
    with pytest.raises(ValueError, match="4 streams"):
        recorder.recorded()


class Engine:
    """One decode step of `streams` rows per event."""

    def __init__(self, streams: int, broken: bool = False) -> None:
        self.recorder: Any = None
        self.streams, self.broken, self.number = streams, broken, itertools.count()
        self._session = SimpleNamespace(
            tiers=SimpleNamespace(residency=SimpleNamespace(layout=SimpleNamespace(layers=LAYERS)))
        )

    async def submit(self, request: GenRequest) -> AsyncIterator[Event]:
        if self.broken:
            yield Failed(EngineError("no"))
            return
        for _ in range(3):
            await asyncio.sleep(0)
            number = next(self.number)
            for layer in range(LAYERS):
                self._session.tiers.recorder(layer, picks_of(number, layer, self.streams))
            yield Done(FinishReason.LENGTH, len(request.prompt_ids), 1)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(BENCH)
    before = set(sys.modules)
    yield importlib.import_module("record_routing")
    for name in set(sys.modules) - before:
        if name in ("record_routing", "decode_kl"):
            del sys.modules[name]


def test_requests_go_on_until_the_trace_is_full(bench: Any, tmp_path: Path) -> None:
    engine = Engine(2)
    recorder = bench.attach(engine, 20, 2)
    asyncio.run(bench.record(engine, recorder, itertools.cycle([[1, 2]]), 2, 8))
    assert recorder.full
    np.save(tmp_path / "trace.npy", recorder.recorded().numpy())
    assert np.load(tmp_path / "trace.npy").shape == (20, LAYERS, 2, PICKS)


def test_a_failed_request_ends_it(bench: Any) -> None:
    engine = Engine(1, broken=True)
    recorder = bench.attach(engine, 20, 1)
    with pytest.raises(EngineError, match="no"):
        asyncio.run(bench.record(engine, recorder, itertools.cycle([[1]]), 1, 8))


def test_without_tiers_there_is_nothing_to_record(bench: Any) -> None:
    engine: Any = SimpleNamespace(_session=SimpleNamespace(tiers=None))
    with pytest.raises(SystemExit, match="no expert tiers"):
        bench.attach(engine, 20, 1)


def test_it_ends_when_the_engine_never_decodes_so_many_together(bench: Any) -> None:
    engine = Engine(2)
    recorder = bench.attach(engine, 20, 3)
    asyncio.run(bench.record(engine, recorder, itertools.cycle([[1, 2]]), 3, 8))
    assert recorder.steps == 0
    assert next(engine.number) <= 3 * 3 * bench.IDLE_ROUNDS


PLAN = Plan(Mode.EXACT, EngineName.EXL3, ModelPlan("/m", "glm", 1024), ListenPlan(), CpuPlan(1, ()))


@pytest.mark.parametrize(
    ("arguments", "prompts", "words"),
    [
        (["--streams", "5"], None, "at most 4 together"),
        (["--streams", "0"], None, "--streams is too small"),
        (["--steps", "0"], None, "--steps is too small"),
        (["--steps", "-3"], None, "--steps is too small"),
        (["--tokens", "1"], None, "--tokens is too small"),
        (["--streams", "2"], '["one"]', "1 prompts are too few for 2 streams"),
        ([], "[]", "0 prompts are too few"),
        ([], '{"a": "b"}', "not a JSON list of texts"),
        ([], "[1]", "not a JSON list of texts"),
        ([], "[", "cannot read"),
        ([], "[" * 100_000, "cannot read"),
    ],
)
def test_what_could_never_be_recorded_is_refused_before_the_model_is_loaded(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, arguments, prompts, words
) -> None:
    monkeypatch.setattr("glm53_server.engine.exl3.load", lambda *_: pytest.fail("loaded"))
    (tmp_path / "plan.json").write_text(PLAN.to_json())
    if prompts is not None:
        (tmp_path / "prompts.json").write_text(prompts)
        arguments = [*arguments, "--prompts", str(tmp_path / "prompts.json")]
    out = tmp_path / "trace.npy"
    line = ["x", "--plan", str(tmp_path / "plan.json"), "--out", str(out), *arguments]
    monkeypatch.setattr(sys, "argv", line)
    told = outcome(bench.main)
    assert words in told + capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("plan", [None, "", "[]", "5", '{"plan": 5}', "[" * 100_000, "\xff"])
def test_a_plan_that_is_none_is_one_line(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, plan
) -> None:
    path = tmp_path / "plan.json"
    if plan is not None:
        path.write_bytes(plan.encode("latin-1"))
    monkeypatch.setattr(sys, "argv", ["x", "--plan", str(path), "--out", str(tmp_path / "t.npy")])
    told = outcome(bench.main) + capsys.readouterr().err
    assert told.startswith("error: ")
    assert str(path) in told
    assert told.count("\n") <= 1


def test_nothing_recorded_is_said(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    engine: Any = Engine(2)
    engine._session.loaded = SimpleNamespace(config=SimpleNamespace(directory=tiny_checkpoint()))
    engine.close = lambda: asyncio.sleep(0)
    monkeypatch.setattr("glm53_server.engine.exl3.load", lambda *_: engine)
    (tmp_path / "plan.json").write_text(PLAN.to_json())
    out = tmp_path / "trace.npy"
    line = ["x", "--plan", str(tmp_path / "plan.json"), "--out", str(out), "--streams", "1"]
    monkeypatch.setattr(sys, "argv", line)
    assert bench.main() == 1
    assert "no decode step with 1 streams was seen" in capsys.readouterr().err
    assert not out.exists()


def outcome(main: Any) -> str:
    """What a script that fails says as it exits; "" when it printed that."""
    try:
        code = main()
    except SystemExit as exit_:
        return str(exit_.code)
    assert code == 2
    return ""
