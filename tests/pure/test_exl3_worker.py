"""The engine thread over a scripted session: delivery, cancellation, failures, the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

from glm53_server.engine.base import (
    Done,
    EngineError,
    Event,
    Failed,
    FinishReason,
    GenRequest,
    PromptProgress,
    PromptScores,
    Tokens,
)
from glm53_server.engine.cpu_worker import Job
from glm53_server.engine.exl3_worker import Exl3Worker

Iterate = Callable[["FakeSession"], list[tuple[str, Event]]]


class FakeSession:
    """Every running request gets one token per iterate() until `length`, unless a script says else."""

    def __init__(self, *scripts: Iterate, length: int = 3) -> None:
        self.requests: dict[str, GenRequest] = {}
        self.produced: dict[str, int] = {}
        self.filters: list[Any] = []
        self.scripts = list(scripts)
        self.length = length
        self.dropped = self.rooms = 0
        self.cancelled: list[str] = []
        self.rebuild_error: Exception | None = None
        self.threads: set[int] = set()

    @property
    def has_work(self) -> bool:
        return bool(self.requests)

    @property
    def active(self) -> int:
        return min(2, len(self.requests))

    def add(self, request: GenRequest, grammar_filter: Any) -> None:
        if request.request_id.startswith("refused"):
            raise EngineError("too long", status=400)
        if request.request_id.startswith("broken"):
            raise RuntimeError("out of pages")
        self.filters.append(grammar_filter)
        self.requests[request.request_id] = request
        self.produced[request.request_id] = 0

    def cancel(self, request_id: str) -> bool:
        known = self.requests.pop(request_id, None) is not None
        if known:
            self.cancelled.append(request_id)
        return known

    def iterate(self) -> list[tuple[str, Event]]:
        self.threads.add(threading.get_ident())
        if self.scripts:
            return self.scripts.pop(0)(self)
        events: list[tuple[str, Event]] = []
        for name in tuple(self.requests):
            self.produced[name] += 1
            events.append((name, Tokens((self.produced[name],))))
            if self.produced[name] == self.length:
                del self.requests[name]
                events.append((name, Done(FinishReason.LENGTH, 1, self.length)))
        return events

    def score(self, request: GenRequest) -> PromptScores:
        return PromptScores(())

    def out_of_memory(self) -> EngineError:
        self.rooms += 1
        return EngineError("GPU memory ran out", status=503, code="out_of_vram")

    def drop_all(self) -> None:
        self.dropped += 1
        self.requests.clear()
        if self.rebuild_error is not None:
            raise self.rebuild_error


def endless(*scripts: Iterate) -> FakeSession:
    return FakeSession(*scripts, length=1 << 30)


def job(name: str, **changes: Any) -> Job:
    return Job(GenRequest(**{"request_id": name, "prompt_ids": (1,), "max_tokens": 9, **changes}), None)  # fmt: skip


async def read(job: Job) -> list[Event]:
    events: list[Event] = []
    while not (events and isinstance(events[-1], Done | Failed)):
        events += await asyncio.wait_for(job.arrived.get(), 10)
    return events


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - it becomes true on another thread
            await asyncio.sleep(0.002)


@asynccontextmanager
async def running(session: FakeSession) -> AsyncIterator[Exl3Worker]:
    fake: Any = session
    worker = Exl3Worker(fake)
    try:
        yield worker
    finally:
        await stopped(worker)


async def stopped(worker: Exl3Worker) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    worker.stop(lambda: loop.call_soon_threadsafe(ended.set))
    await asyncio.wait_for(ended.wait(), 10)
    await asyncio.to_thread(worker.join)


def raising(error: Exception) -> Iterate:
    def script(_: FakeSession) -> list[tuple[str, Event]]:
        raise error

    return script


def test_every_reader_gets_its_own_events_and_one_end() -> None:
    async def scenario() -> None:
        session = FakeSession()
        async with running(session) as worker:
            jobs = [job(name) for name in "abc"]
            for one in jobs:
                worker.add(one, f"filter of {one.request.request_id}")
            for one in jobs:
                events = await read(one)
                assert events == [Tokens((1,)), Tokens((2,)), Tokens((3,)), Done(FinishReason.LENGTH, 1, 3)]  # fmt: skip
            assert session.filters == [f"filter of {name}" for name in "abc"]
            await until(lambda: worker.running == 0 and worker.waiting == 0)
            counters = worker.counters
            assert (counters.requests, counters.failed, counters.cancelled) == (3, 0, 0)
            assert (counters.prompt_tokens, counters.completion_tokens) == (3, 9)
            assert len(session.threads) == 1

    asyncio.run(scenario())


def test_cancelling_in_mid_stream_frees_the_place_and_others_go_on() -> None:
    async def scenario() -> None:
        session = endless()
        async with running(session) as worker:
            gone, stays = job("gone"), job("stays")
            worker.add(gone, None)
            worker.add(stays, None)
            await gone.arrived.get()
            worker.cancel(gone)
            assert isinstance((await read(gone))[-1], Done)
            assert session.cancelled == ["gone"]
            seen = session.produced["stays"]
            await until(lambda: session.produced["stays"] > seen + 5)
            assert (worker.counters.cancelled, worker.running) == (1, 1)

    asyncio.run(scenario())


def test_a_job_cancelled_before_its_turn_never_starts() -> None:
    async def scenario() -> None:
        hold = threading.Event()

        def wait(_: FakeSession) -> list[tuple[str, Event]]:
            hold.wait(10)
            return []

        session = FakeSession(wait)
        async with running(session) as worker:
            first, second = job("first"), job("second")
            worker.add(first, None)
            await until(lambda: session.has_work)
            worker.add(second, None)
            worker.cancel(second)
            hold.set()
            await read(first)
            assert "second" not in session.produced

    asyncio.run(scenario())


def test_cancelling_what_has_ended_changes_nothing() -> None:
    async def scenario() -> None:
        async with running(FakeSession()) as worker:
            done = job("done")
            worker.add(done, None)
            await read(done)
            worker.cancel(done)
            after = job("after")
            worker.add(after, None)
            assert len(await read(after)) == 4
            assert worker.counters.cancelled == 0
            assert done.arrived.empty()

    asyncio.run(scenario())


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


def test_stopping_ends_running_jobs_and_says_so_last() -> None:
    async def scenario() -> None:
        session = endless()
        async with running(session) as worker:
            one = job("one")
            worker.add(one, None)
            await one.arrived.get()
            await stopped(worker)
            failed = (await read(one))[-1]
            assert isinstance(failed, Failed)
            assert (failed.error.status, failed.error.code) == (503, "engine_stopped")
            assert not worker.alive

    asyncio.run(scenario())


def test_scores_only_need_no_generation() -> None:
    async def scenario() -> None:
        session = endless()
        async with running(session) as worker:
            one = job("one", max_tokens=0, prompt_logprobs_from=0)
            worker.add(one, None)
            assert await read(one) == [PromptScores(()), Done(FinishReason.LENGTH, 1, 0)]
            assert session.produced == {}

    asyncio.run(scenario())


def test_scores_come_before_the_first_token() -> None:
    async def scenario() -> None:
        async with running(FakeSession()) as worker:
            one = job("one", prompt_logprobs_from=1)
            worker.add(one, None)
            events = await read(one)
            assert isinstance(events[0], PromptScores)
            assert isinstance(events[1], Tokens)

    asyncio.run(scenario())


def test_prefill_time_and_decode_time_are_told_apart() -> None:
    def slow_prompt(session: FakeSession) -> list[tuple[str, Event]]:
        threading.Event().wait(0.05)
        return [(name, PromptProgress(1, 2)) for name in session.requests]

    async def scenario() -> None:
        async with running(FakeSession(slow_prompt)) as worker:
            one = job("one")
            worker.add(one, None)
            assert (await read(one))[0] == PromptProgress(1, 2)
            await until(lambda: worker.counters.steps == 4)
            assert worker.counters.prefill_s >= 0.05
            assert worker.counters.decode_s < worker.counters.prefill_s

    asyncio.run(scenario())
