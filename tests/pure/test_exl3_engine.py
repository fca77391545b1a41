"""The GPU engine over a scripted session: what a request meets before, while and after it is computed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from exl3_worker_stage import FakeSession, until

from glm53_server.engine.base import (
    Done,
    EngineError,
    EngineState,
    Event,
    Failed,
    FinishReason,
    GenRequest,
    Grammar,
    Tokens,
)
from glm53_server.engine.exl3 import Exl3Engine

BROKEN = Grammar("regex", "(")


class Session(FakeSession):
    """What the engine asks a session for beside its worker."""

    tier_stats: dict[str, object] | None = None

    def __init__(self, length: int = 3) -> None:
        super().__init__(length=length)
        self.closed = 0
        self.lane = SimpleNamespace(enabled=True, stats=lambda: {"jobs": 7})
        self.tiers = SimpleNamespace(cpu_lane=self.lane)

    def compile_filter(self, grammar: Grammar) -> str:
        if grammar is BROKEN:
            raise EngineError("no such grammar", status=400, param="regex")
        return f"filter of {grammar.text}"

    def close(self) -> None:
        self.closed += 1


@asynccontextmanager
async def serving(session: Session) -> AsyncIterator[Exl3Engine]:
    info: Any = SimpleNamespace(vocab_size=8, context_tokens=64)
    fake: Any = session
    engine = Exl3Engine(fake, info)
    assert engine.info is info
    try:
        yield engine
    finally:
        await engine.close()


def asked(name: str = "a", **changes: Any) -> GenRequest:
    return GenRequest(**{"request_id": name, "prompt_ids": (1,), "max_tokens": 9, **changes})


async def answer(engine: Exl3Engine, request: GenRequest) -> list[Event]:
    async with asyncio.timeout(10):
        return [event async for event in engine.submit(request)]


def test_a_request_gets_its_events_and_is_counted() -> None:
    async def scenario() -> None:
        session = Session()
        async with serving(session) as engine:
            events = await answer(engine, asked(grammar=Grammar("regex", "a+")))
            assert events[:3] == [Tokens((1,)), Tokens((2,)), Tokens((3,))]
            assert isinstance(events[-1], Done)
            assert session.filters == ["filter of a+"]
            told = engine.stats()
            assert (told["requests"], told["completion_tokens"], told["lost"]) == (1, 3, None)
            assert told["cpu_tier"] == {"jobs": 7}
            assert "expert_cache" not in told
            session.tier_stats = {"slots": 8}
            assert engine.stats()["expert_cache"] == [{"slots": 8}]
            assert engine.steps >= 3
            await until(lambda: (engine.running, engine.queued) == (0, 0))
        assert session.closed == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("changes", "status"),
    [({"prompt_ids": ()}, 400), ({"prompt_ids": (8,)}, 400), ({"prompt_ids": (1,) * 64}, 400),
     ({"grammar": BROKEN}, 400)],
)  # fmt: skip
def test_what_can_never_run_reaches_no_worker(changes: dict[str, Any], status: int) -> None:
    async def scenario() -> None:
        async with serving(Session()) as engine:
            [event] = await answer(engine, asked(**changes))
            assert isinstance(event, Failed)
            assert event.error.status == status
            assert engine.stats()["requests"] == 0

    asyncio.run(scenario())


def test_a_reader_that_leaves_frees_its_place() -> None:
    async def scenario() -> None:
        session = Session(length=1 << 30)
        async with serving(session) as engine:
            events = engine.submit(asked("left"))
            assert isinstance(await anext(events), Tokens)
            assert engine.running == 1
            await events.aclose()  # type: ignore[attr-defined]
            await until(lambda: [name.partition("#")[0] for name in session.cancelled] == ["left"])
            await until(lambda: engine.running == 0)
            assert engine.stats()["requests_cancelled"] == 1

    asyncio.run(scenario())


def test_requests_of_one_name_have_each_their_own_events() -> None:
    """Names are the clients': they may send one twice, at once or one after the other."""

    async def scenario() -> None:
        async with serving(Session()) as engine:
            for _ in range(3):
                names = ("same", "same", "same-1", "same")
                for events in await asyncio.gather(*(answer(engine, asked(n)) for n in names)):
                    assert events[:-1] == [Tokens((1,)), Tokens((2,)), Tokens((3,))]
                    assert isinstance(events[-1], Done)
            told = engine.stats()
            assert (told["requests"], told["completion_tokens"]) == (12, 36)
            assert (told["requests_failed"], told["requests_cancelled"]) == (0, 0)

    asyncio.run(scenario())


def test_one_that_leaves_takes_no_other_of_its_name_along() -> None:
    async def scenario() -> None:
        session = Session(length=1 << 30)
        async with serving(session) as engine:
            left, stays = engine.submit(asked("same")), engine.submit(asked("same"))
            assert await anext(left) == await anext(stays) == Tokens((1,))
            await left.aclose()  # type: ignore[attr-defined]
            await until(lambda: len(session.cancelled) == 1)
            assert engine.running == 1
            async with asyncio.timeout(10):
                assert [await anext(stays) for _ in range(5)] == [Tokens((n,)) for n in range(2, 7)]

    asyncio.run(scenario())


def test_the_state_follows_the_tier_and_the_thread() -> None:
    async def scenario() -> None:
        session = Session()
        async with serving(session) as engine:
            assert engine.state is EngineState.READY
            session.lane.enabled = False
            assert engine.state is EngineState.DEGRADED
        assert engine.state is EngineState.LOST
        [event] = await answer(engine, asked())
        assert isinstance(event, Failed)
        assert event.error.status == 503

    asyncio.run(scenario())


def test_an_end_in_mid_stream_is_told_to_its_reader() -> None:
    async def scenario() -> None:
        session = Session(length=1 << 30)
        async with serving(session) as engine:
            events = engine.submit(asked())
            await anext(events)
            await engine.close()
            rest = [event async for event in events]
            last = rest[-1]
            assert isinstance(last, Failed) or (
                isinstance(last, Done) and last.reason is FinishReason.CANCELLED
            )
        assert session.closed == 1

    asyncio.run(scenario())
