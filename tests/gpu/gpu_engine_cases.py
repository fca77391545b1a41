"""A GPU engine over the tiny checkpoint, asked through Engine.submit as the server asks it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any, cast

import torch
from gpu_exact import random_ids
from gpu_harness import TINY

from glm53_server.engine import exl3
from glm53_server.engine.base import (
    Done,
    EngineState,
    Event,
    GenRequest,
    Sampling,
    Tokens,
)
from glm53_server.engine.exl3 import Exl3Engine
from glm53_server.moe.cpu_tier import CpuLane
from glm53_server.moe.split import SplitState
from glm53ctl.plan import (
    CpuPlan,
    CpuTierPlan,
    EngineName,
    GpuPlan,
    LimitsPlan,
    ListenPlan,
    Mode,
    ModelPlan,
    Plan,
)

VOCAB, RECORD_BYTES, CACHE_TOKENS = 4096, 36864, 16384
PROMPTS = [random_ids(VOCAB, n, n) for n in (12, 300, 45, 77)]
GREEDY = Sampling(temperature=0)


def plan(mode: Mode, tier: CpuTierPlan | None = None, slots: int = 39) -> Plan:
    return Plan(
        mode=mode,
        engine=EngineName.EXL3,
        model=ModelPlan(str(TINY), "tiny", CACHE_TOKENS),
        listen=ListenPlan(),
        cpu=CpuPlan(threads=4, cpus=()),
        limits=LimitsPlan(max_batch=4, cache_tokens=CACHE_TOKENS, chunk_tokens=2048),
        gpu=GpuPlan(
            uuid="", name="", reserve_bytes=0, elastic_bytes=20 * RECORD_BYTES,
            stage_bytes=8 * RECORD_BYTES, cache_slots=slots,
        ),
        cpu_tier=tier,
    )  # fmt: skip


def loaded(wanted: Plan) -> Iterator[Exl3Engine]:
    engine = exl3.load(wanted, lambda phase, done, total: None)
    yield engine
    asyncio.run(engine.close())
    assert engine.state is EngineState.LOST


def request(name: str, prompt: torch.Tensor, tokens: int = 40, **more: Any) -> GenRequest:
    ids = tuple(prompt[0].tolist())
    return GenRequest(name, ids, tokens, **{"sampling": GREEDY, **more})


def stream(engine: Exl3Engine, asked: GenRequest) -> AsyncGenerator[Event]:
    return cast("AsyncGenerator[Event]", engine.submit(asked))


async def collect(engine: Exl3Engine, asked: GenRequest) -> list[Event]:
    return [event async for event in engine.submit(asked)]


def run(work: Awaitable[Any], limit_s: float = 300) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(work, limit_s)

    return asyncio.run(limited())


def ids_of(events: list[Event]) -> list[int]:
    assert isinstance(events[-1], Done), events[-1]
    return [i for event in events if isinstance(event, Tokens) for i in event.ids]


def until(true: Callable[[], bool], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def works(engine: Exl3Engine, name: str = "next") -> list[int]:
    ids = ids_of(run(collect(engine, request(name, PROMPTS[0]))))
    assert len(ids) == 40
    return ids


def lane_of(engine: Exl3Engine) -> CpuLane:
    """The CPU lane of a fast engine."""
    tiers = engine._session.tiers
    assert tiers is not None
    assert tiers.cpu_lane is not None
    return tiers.cpu_lane


def all_to_cpu(engine: Exl3Engine) -> CpuLane:
    """From now on every miss of a fast engine is computed on the CPU."""
    lane = lane_of(engine)
    lane.split = SplitState(lane.split.costs, 0.0, frozen=True)
    return lane


def forget(engine: Exl3Engine) -> None:
    """Empty the expert cache of an idle engine."""
    tiers = engine._session.tiers
    assert tiers is not None
    residency = tiers.residency
    residency.evict(0, residency.slots, lock=False)
    torch.cuda.synchronize()
