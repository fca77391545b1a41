"""The engine thread over a scripted session: what one failure ends, and what it leaves."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
from exl3_worker_stage import FakeSession, endless, job, raising, read, running, until

from glm53_server.engine.base import (
    Done,
    EngineError,
    Event,
    Failed,
    Tokens,
)


@pytest.mark.parametrize(("name", "status"), [("refused", 400), ("broken", 500)])
def test_a_request_that_cannot_start_fails_alone_or_with_the_step(name: str, status: int) -> None:
    async def scenario() -> None:
        session = endless()
        async with running(session) as worker:
            good, bad = job("good"), job(name)
            worker.add(good, None)
            await good.arrived.get()
            worker.add(bad, None)
            (failed,) = await read(bad)
            assert isinstance(failed, Failed)
            assert failed.error.status == status
            # A refusal concerns nobody else; after anything else nothing is trusted any more.
            assert session.dropped == (0 if status == 400 else 1)
            session.length = 3
            if status == 400:
                session.produced["good"] = 0
                assert isinstance((await read(good))[-1], Done)
            else:
                assert isinstance((await read(good))[-1], Failed)
            after = job("after")
            worker.add(after, None)
            assert isinstance((await read(after))[-1], Done)

    asyncio.run(scenario())


def test_an_error_event_of_one_job_leaves_the_others() -> None:
    both_added = threading.Event()

    def wait(_: FakeSession) -> list[tuple[str, Event]]:
        both_added.wait(10)
        return []

    def fail_one(session: FakeSession) -> list[tuple[str, Event]]:
        del session.requests["bad"]
        return [("bad", Failed(EngineError("its filter broke"))), ("good", Tokens((7,)))]

    async def scenario() -> None:
        async with running(FakeSession(wait, fail_one)) as worker:
            bad, good = job("bad"), job("good")
            worker.add(bad, None)
            worker.add(good, None)
            both_added.set()
            assert [type(event) for event in await read(bad)] == [Failed]
            events = await read(good)
            assert events[0] == Tokens((7,))
            assert isinstance(events[-1], Done)
            assert worker.counters.failed == 1

    asyncio.run(scenario())


def test_a_failed_step_ends_all_running_jobs_and_the_thread_goes_on() -> None:
    async def scenario() -> None:
        session = endless()
        async with running(session) as worker:
            jobs = [job("a"), job("b")]
            for one in jobs:
                worker.add(one, None)
                await one.arrived.get()
            session.scripts.append(raising(AssertionError("page table is torn")))
            for one in jobs:
                failed = (await read(one))[-1]
                assert isinstance(failed, Failed)
                assert "page table is torn" in failed.error.message
            await until(lambda: session.dropped == 1)
            session.length = 3
            after = job("after")
            worker.add(after, None)
            assert isinstance((await read(after))[-1], Done)
            assert worker.alive
            assert worker.counters.failed == 2

    asyncio.run(scenario())


def lose(error: Exception, rebuild: Exception | None = None) -> tuple[str, list[Event]]:
    """The reason the engine gave up for, and what the running job was told."""

    async def scenario() -> tuple[str, list[Event]]:
        session = FakeSession(raising(error))
        session.rebuild_error = rebuild
        async with running(session) as worker:
            one = job("one")
            worker.add(one, None)
            events = await read(one)
            await until(lambda: not worker.alive)
            assert worker.lost is not None
            with pytest.raises(EngineError, match="the engine is lost") as refused:
                worker.add(job("late"), None)
            assert (refused.value.status, refused.value.code) == (503, "engine_lost")
            return worker.lost, events

    return asyncio.run(scenario())


def test_a_cuda_failure_loses_the_engine() -> None:
    reason, events = lose(torch.AcceleratorError("an illegal memory access\nmore lines"))
    assert reason == "an illegal memory access"
    assert isinstance(events[-1], Failed)


@pytest.mark.parametrize("stop", [False, True])
def test_a_request_that_arrives_during_the_last_step_is_answered(stop: bool) -> None:
    entered, leave = threading.Event(), threading.Event()

    def last(_: FakeSession) -> list[tuple[str, Event]]:
        entered.set()
        leave.wait(10)
        if not stop:
            raise torch.AcceleratorError("an illegal memory access")
        return []

    async def scenario() -> None:
        async with running(FakeSession(last)) as worker:
            first, late = job("first"), job("late")
            worker.add(first, None)
            await asyncio.to_thread(entered.wait, 10)
            if stop:
                worker.stop(lambda: None)
            worker.add(late, None)
            leave.set()
            for one in (first, late):
                assert isinstance((await read(one))[-1], Failed)

    asyncio.run(scenario())


def test_a_session_that_cannot_be_rebuilt_loses_the_engine() -> None:
    reason, events = lose(ValueError("torn"), RuntimeError("no memory for a new generator"))
    assert "torn" in reason
    assert "no memory for a new generator" in reason
    assert isinstance(events[-1], Failed)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
    ],
)
def test_running_out_of_memory_loses_a_step_not_the_engine(error: Exception) -> None:
    async def scenario() -> None:
        session = FakeSession(raising(error))
        async with running(session) as worker:
            one, two = job("one"), job("two")
            worker.add(one, None)
            failed = (await read(one))[-1]
            assert isinstance(failed, Failed)
            assert (failed.error.status, failed.error.code) == (503, "out_of_vram")
            assert (session.rooms, session.dropped) == (1, 1)
            worker.add(two, None)
            assert isinstance((await read(two))[-1], Done)
            assert worker.lost is None

    asyncio.run(scenario())
