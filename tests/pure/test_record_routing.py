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
