"""Fast mode's CPU lane over a real arena and tier, with the test in the place of the GPU and its driver."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import exl3_oracle as oracle
import numpy as np
import pytest
import torch
from native_cases import Choice, table_of
from tier_cases import Box

from glm53_kernels import CpuKernels, CpuTier
from glm53_kernels.cuda import StepStruct
from glm53_server.moe.arena import ExpertArena, RecordLayout
from glm53_server.moe.cpu_tier import PROBE_LAYERS, TRACK_EVERY, CpuLane, ExpertScales
from glm53_server.moe.expert_shape import ExpertShape
from glm53_server.moe.split import LaneCosts, SplitState

LAYERS, EXPERTS, HIDDEN, WIDE, BITS, LIMIT = 2, 3, 256, 128, (3, 4, 5), 10.0
START = SplitState(LaneCosts(2e-4, 2e-4, 5e-5), 0.5)


@dataclass(slots=True)
class Driver:
    """Keeps the books of libglm53_cuda.so."""

    registered: list[int] = field(default_factory=list[int])
    calls: list[str] = field(default_factory=list[str])

    def host_register(self, address: int, size_bytes: int) -> int:
        self.registered.append(address)
        return address

    def host_unregister(self, address: int) -> None:
        self.registered.remove(address)

    def mailbox_wait(self, step: StepStruct, stream: int) -> None:
        self.calls.append(f"wait {step.sequence}")

    def combine(self, state: object, step: StepStruct, final: int, stream: int) -> None:
        self.calls.append(f"combine {step.sequence}")


class Residency:
    """As much of one as the lane reads."""

    state = None

    def __init__(self) -> None:
        self.totals = {"steps": 0, "hits": 0, "misses": 0, "admitted": 0}
        self.gather_times: list[Any] | None = None

    def stream(self) -> int:
        return 0

    def counters(self) -> dict[str, int]:
        return dict(self.totals)


@dataclass(frozen=True, slots=True)
class Stage:
    lane: CpuLane
    driver: Driver
    box: Box
    experts: list[list[oracle.Expert]]
    pool: CpuKernels

    def step(self, rows: int = 1, picks: int = 3) -> StepStruct:
        step = StepStruct(layer=0)
        self.lane.fill(step, torch.zeros(rows, HIDDEN).half(), torch.zeros(rows, picks).half())
        return step

    def compute(self, layer: int, choice: Choice, x: np.ndarray) -> np.ndarray:
        sequence = self.step().sequence
        self.box.post(sequence, layer, choice, x)
        self.box.wait(sequence)
        return self.box.out(len(x)).copy()


def arena_of(experts: list[list[oracle.Expert]], driver: Any) -> ExpertArena:
    sizes = [linear.trellis.nbytes for linear in experts[0][0]]
    layout = RecordLayout(LAYERS, EXPERTS, *sizes)

    def fill(layer: int, destination: torch.Tensor, pool: ThreadPoolExecutor) -> None:
        parts = [linear.trellis.reshape(-1) for expert in experts[layer] for linear in expert]
        destination.copy_(torch.from_numpy(np.concatenate(parts).view(np.uint8)))

    arena = ExpertArena(layout, driver, threads=1)
    arena.start_filling(fill, lambda done, total: None)
    for layer in range(LAYERS):
        arena.wait_layer(layer)
    return arena


def scales_of(experts: list[oracle.Expert]) -> ExpertScales:
    def stacked(part: int) -> tuple[torch.Tensor, torch.Tensor]:
        suh = np.stack([expert[part].suh for expert in experts])
        svh = np.stack([expert[part].svh for expert in experts])
        return torch.from_numpy(suh), torch.from_numpy(svh)

    return ExpertScales(stacked(0), stacked(1), stacked(2))


@pytest.fixture
def stage(open_kernels: Callable[..., CpuKernels]) -> Iterator[Stage]:
    rng = np.random.default_rng(3)
    experts = [
        [oracle.random_expert(rng, HIDDEN, WIDE, BITS) for _ in range(EXPERTS)]
        for _ in range(LAYERS)
    ]
    driver: Any = Driver()
    arena = arena_of(experts, driver)
    pool = open_kernels()
    shape = ExpertShape(HIDDEN, WIDE, BITS, LIMIT, picks_per_row=3)
    lane = CpuLane(arena, [scales_of(layer) for layer in experts], shape, pool, driver, START)
    address = driver.registered[-1]
    size = len(lane._map)
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    box = Box(CpuTier.mailbox_bytes(pool, HIDDEN), HIDDEN, memory)
    yield Stage(lane, driver, box, experts, pool)
    lane.close()
    arena.close()
    assert driver.registered == []


def test_every_expert_is_read_from_its_record_in_the_arena(stage: Stage) -> None:
    x = np.random.default_rng(1).normal(size=(2, HIDDEN)).astype(np.float32)
    for layer in range(LAYERS):
        for expert in range(EXPERTS):
            choice = Choice.of((expert, 1, 0.5))
            got = stage.compute(layer, choice, x)
            sent = x.astype(np.float16).astype(np.float32)
            want = np.zeros_like(sent)
            table = table_of(list(stage.experts[layer]), act_limit=LIMIT)
            stage.pool.expert_forward(table, sent, want, rows=2, picks=choice.picks)
            assert (got == want).all(), (layer, expert)
    assert stage.lane.counters().jobs == LAYERS * EXPERTS


def test_a_filled_step_says_what_the_device_needs(stage: Stage) -> None:
    first, second = stage.step(), stage.step()
    assert (first.sequence, second.sequence) == (1, 2)
    assert (second.per_row, second.hidden) == (3, HIDDEN)
    assert second.mailbox == stage.box.address
    assert second.gpu_share == START.share
    assert second.dither == START.offset


def test_the_sequence_wraps(stage: Stage) -> None:
    stage.lane._sequence = 0xFFFFFFFF
    assert stage.step().sequence == 0
    assert stage.step().sequence == 1


def test_combine_waits_first(stage: Stage) -> None:
    residency: Any = Residency()
    step = stage.step()
    stage.lane.combine(residency, step, torch.zeros(1, HIDDEN))
    assert stage.driver.calls == ["wait 1", "combine 1"]


def test_a_lane_switched_off_leaves_the_step_to_the_gpu(stage: Stage) -> None:
    residency: Any = Residency()
    step = stage.step()
    stage.lane.enabled = False
    stage.lane.fill(step, torch.zeros(1, HIDDEN).half(), torch.zeros(1, 3).half())
    stage.lane.combine(residency, step, torch.zeros(1, HIDDEN))
    assert step.mailbox == 0
    assert stage.driver.calls == []
    assert not stage.lane.failed
    assert stage.lane.recover()
    assert stage.lane.enabled


def after_steps(stage: Stage, residency: Any, count: int, link_ms: float = 0.6) -> None:
    """Decode steps; `link_ms` is what the three copies of a layer take where they are timed."""
    for _ in range(count):
        residency.totals["steps"] += LAYERS
        residency.totals["misses"] += 6 * LAYERS
        residency.totals["hits"] += 2 * LAYERS
        stage.lane.after_step(residency)
        residency.totals["admitted"] += 3 * LAYERS
        if residency.gather_times is not None:
            span = SimpleNamespace(elapsed_time=lambda after: after)
            residency.gather_times += [(span, link_ms)] * LAYERS


def test_the_split_follows_every_so_many_steps(stage: Stage) -> None:
    residency: Any = Residency()
    stage.compute(0, Choice.of((0, 0, 1.0)), np.ones((1, HIDDEN), np.float32))
    after_steps(stage, residency, TRACK_EVERY - 1)
    assert stage.lane.split == START
    after_steps(stage, residency, 1)
    assert stage.lane.split.misses == pytest.approx(4.0 + 0.05 * 2.0)
    assert stage.lane.split.hits == pytest.approx(4.0 - 0.05 * 2.0)
    assert stage.lane.split.costs.cpu_s != START.costs.cpu_s
    assert stage.lane.split.costs.link_s == pytest.approx(2e-4)
    settled = stage.lane.split
    after_steps(stage, residency, TRACK_EVERY)
    assert stage.lane.split.costs == settled.costs, "nothing new was computed on the CPU"
    assert stage.lane.split.misses > settled.misses


def test_the_split_follows_the_links_rate_from_timed_copies(stage: Stage) -> None:
    residency: Any = Residency()
    stage.lane.track_every = 4
    after_steps(stage, residency, 4 * 200, link_ms=3 * 0.8)  # four times what was calibrated
    split = stage.lane.split
    assert split.costs.link_s == pytest.approx(8e-4, rel=0.01)
    assert split.share < START.share - 0.2
    assert residency.gather_times is None, "every step is timed"


def test_a_frozen_split_stays(stage: Stage) -> None:
    residency: Any = Residency()
    stage.lane.split = replace(START, frozen=True)
    after_steps(stage, residency, 2 * TRACK_EVERY)
    assert stage.lane.split == replace(START, frozen=True)


def test_stats_name_what_was_done(stage: Stage) -> None:
    x = np.ones((1, HIDDEN), np.float32)
    stage.compute(0, Choice.of((0, 0, 1.0), (2, 0, 1.0)), x)
    stage.compute(1, Choice.of((1, 0, 1.0)), x)
    stats = SimpleNamespace(**stage.lane.stats())
    assert (stats.host_jobs, stats.cpu_experts, stats.cpu_experts_per_call) == (2, 3, 1.5)
    assert (stats.enabled, stats.timeouts, stats.threads) == (True, 0, 1)
    assert stats.host_busy_max_ms >= stats.host_busy_ms_per_job > 0
    assert stats.gpu_share == START.share


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_both_lanes_are_measured_whatever_the_split_says(stage: Stage, share: float) -> None:
    """And on every layer in turn: one whose experts are all in slots has nothing to measure."""
    residency: Any = Residency()
    x, weights = torch.zeros(1, HIDDEN).half(), torch.zeros(1, 3).half()
    stage.lane.track_every = 4
    stage.lane.split = SplitState(START.costs, share, offset=0.0, frozen=False)
    layers = range(2 * PROBE_LAYERS)

    def splits() -> dict[int, tuple[float, float]]:
        given = {}
        for layer in layers:
            step = StepStruct(layer=layer)
            stage.lane.fill(step, x, weights)
            given[layer] = step.gpu_share, step.dither
        return given

    linked, computed = set[int](), set[int]()
    for _ in range(PROBE_LAYERS):
        after_steps(stage, residency, 2)
        assert all(
            pair == (stage.lane.split.share, stage.lane.split.offset) for pair in splits().values()
        )
        after_steps(stage, residency, 1)  # the next step is timed
        for layer, (part, dither) in splits().items():
            if (part, dither) == (0.0, 0.0):
                computed.add(layer)
            elif dither >= 1.0:
                linked.add(layer)
        after_steps(stage, residency, 1)
        stage.lane.split = SplitState(START.costs, share, offset=0.0)
    assert linked == set(layers), "the link gets no miss at all on some layer"
    if share:
        assert computed == set(layers), "the CPU gets no miss at all on some layer"
