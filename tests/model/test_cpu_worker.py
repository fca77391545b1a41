"""The CPU engine's worker thread with scripted jobs: turns, places, failures and its own end."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from glm53_server.engine.base import (
    Done,
    EngineError,
    Event,
    Failed,
    FinishReason,
    GenRequest,
    Tokens,
)
from glm53_server.engine.cpu_worker import Worker
from glm53_server.engine.jobs import Job

Script = Callable[[Job], Iterator[tuple[Event, ...]]]


def token(value: int) -> tuple[Tokens]:
    return (Tokens((value,)),)


def done(count: int = 0) -> tuple[Done]:
    return (Done(FinishReason.LENGTH, 1, count),)


def job(name: str) -> Job:
    return Job(GenRequest(name, (1,), 10), None)


async def read(job: Job) -> list[Event]:
    events: list[Event] = []
    while not (events and isinstance(events[-1], Done | Failed)):
        events += await asyncio.wait_for(job.arrived.get(), 5)
    return events


@asynccontextmanager
async def running(script: Script, max_running: int = 2) -> AsyncIterator[Worker]:
    worker = Worker(script, max_running=max_running, threads=1)
    try:
        yield worker
    finally:
        await stopped(worker)


async def stopped(worker: Worker) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    worker.stop(lambda: loop.call_soon_threadsafe(ended.set))
    await asyncio.wait_for(ended.wait(), 5)
    worker.join()


def test_running_jobs_take_turns() -> None:
    order: list[str] = []
    both_added = threading.Event()

    def script(job: Job) -> Iterator[tuple[Event, ...]]:
        both_added.wait(5)
        for step in range(3):
            order.append(job.request.request_id)
            yield token(step)
        yield done(3)

    async def scenario() -> None:
        async with running(script) as worker:
            first, second = job("a"), job("b")
            worker.add(first)
            worker.add(second)
            both_added.set()
            await asyncio.gather(read(first), read(second))

    asyncio.run(scenario())
    # The first may have begun alone; from the second's first step on they alternate.
    tail = order[order.index("b") - 1 :]
    assert tail == (["a", "b"] * 3)[: len(tail)]
    assert sorted(order) == list("aaabbb")


def test_places_are_limited_and_the_line_is_first_in_first_out() -> None:
    begun: list[str] = []
    gate = threading.Event()
    most = 0

    def script(job: Job) -> Iterator[tuple[Event, ...]]:
        nonlocal most
        begun.append(job.request.request_id)
        gate.wait(5)
        most = max(most, worker_seen[0].running)
        yield token(1)
        yield done(1)

    worker_seen: list[Worker] = []

    async def scenario() -> None:
        async with running(script, max_running=2) as worker:
            worker_seen.append(worker)
            jobs = [job(name) for name in "abcde"]
            for one in jobs:
                worker.add(one)
            await asyncio.sleep(0.05)
            assert worker.running == 1 or worker.running == 2
            assert worker.running + worker.waiting == 5
            gate.set()
            await asyncio.gather(*map(read, jobs))
            assert (worker.running, worker.waiting) == (0, 0)

    asyncio.run(scenario())
    assert begun == list("abcde")
    assert most == 2


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [
        (EngineError("too hot", status=400, code="hot"), 400, "hot"),
        (RuntimeError("shapes do not match"), 500, "engine_error"),
        (MemoryError(), 500, "engine_error"),
    ],
)
def test_a_failing_job_fails_alone(raised: Exception, status: int, code: str) -> None:
    def script(job: Job) -> Iterator[tuple[Event, ...]]:
        yield token(1)
        if job.request.request_id == "bad":
            raise raised
        yield token(2)
        yield done(2)

    async def scenario() -> None:
        async with running(script) as worker:
            bad, good = job("bad"), job("good")
            worker.add(bad)
            worker.add(good)
            failed = await read(bad)
            assert isinstance(failed[-1], Failed)
            assert (failed[-1].error.status, failed[-1].error.code) == (status, code)
            assert await read(good) == [*token(1), *token(2), *done(2)]
            later = job("good")
            worker.add(later)
            assert await read(later) == [*token(1), *token(2), *done(2)]
            assert worker.counters.failed == 1
            assert worker.alive

    asyncio.run(scenario())


def test_cancel_while_waiting_and_while_running() -> None:
    begun: list[str] = []
    gate = threading.Event()

    def script(job: Job) -> Iterator[tuple[Event, ...]]:
        begun.append(job.request.request_id)
        gate.wait(5)
        while True:
            yield token(1)

    async def scenario() -> None:
        async with running(script, max_running=1) as worker:
            first, waiting = job("first"), job("waiting")
            worker.add(first)
            worker.add(waiting)
            worker.cancel(waiting)
            assert worker.waiting <= 1
            gate.set()
            await asyncio.wait_for(first.arrived.get(), 5)
            worker.cancel(first)
            events = await read(first)
            assert isinstance(events[-1], Done)
            assert events[-1].reason is FinishReason.CANCELLED
            assert (worker.running, worker.waiting) == (0, 0)
            assert worker.counters.cancelled == 2

    asyncio.run(scenario())
    assert begun == ["first"]


def test_a_reader_whose_loop_is_gone_is_dropped() -> None:
    gate = threading.Event()

    def script(job: Job) -> Iterator[tuple[Event, ...]]:
        gate.wait(5)
        while True:
            yield token(1)

    worker = Worker(script, max_running=1, threads=1)

    async def abandoned() -> None:
        worker.add(job("abandoned"))

    asyncio.run(abandoned())
    gate.set()

    async def scenario() -> None:
        for _ in range(500):
            if worker.running == 0:
                break
            await asyncio.sleep(0.01)
        assert worker.running == 0
        assert worker.alive
        await stopped(worker)

    asyncio.run(scenario())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dying_thread_tells_every_reader() -> None:
    """Something no job may survive, such as an interpreter exit, still ends every stream."""

    def script(job: Job) -> Iterator[tuple[Event, ...]]:
        yield token(1)
        raise KeyboardInterrupt

    async def scenario() -> None:
        worker = Worker(script, max_running=1, threads=1)
        jobs = [job("a"), job("b")]
        for one in jobs:
            worker.add(one)
        for events in await asyncio.gather(*map(read, jobs)):
            assert isinstance(events[-1], Failed)
            assert events[-1].error.code == "engine_lost"
        worker.join()
        assert not worker.alive
        with pytest.raises(EngineError, match="shut down"):
            worker.add(job("late"))
        await stopped(worker)

    asyncio.run(scenario())


def test_counters_tell_prefill_from_decode() -> None:
    def script(job: Job) -> Iterator[tuple[Event, ...]]:
        yield ()
        yield token(1)
        yield token(2)
        yield (*token(3), *done(3))

    async def scenario() -> None:
        async with running(script) as worker:
            one = job("one")
            worker.add(one)
            await read(one)
            counters = worker.counters
            assert (counters.steps, counters.requests) == (4, 1)
            assert (counters.prompt_tokens, counters.completion_tokens) == (1, 3)
            assert counters.prefill_s > 0
            assert counters.decode_s > 0

    asyncio.run(scenario())
