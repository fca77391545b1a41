"""The engine thread meets what nobody foresaw, or ends just when something arrives: everybody is told."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from typing import Any

import pytest
import torch
from exl3_worker_stage import FakeSession, endless, job, raising, read, running, until

from glm53_server.engine import exl3_worker
from glm53_server.engine.base import Done, Event, Failed, GenRequest, PromptScores
from glm53_server.engine.exl3_worker import Exl3Worker

UNFORESEEN = [TypeError("no such keyword"), KeyError("page"), MemoryError("no room"), OSError(5, "EIO")]  # fmt: skip


class Torn(FakeSession):
    """One of its methods raises; all others work."""

    def __init__(self, method: str, error: Exception) -> None:
        super().__init__(length=1 << 30)
        self.method, self.error = method, error

    def _try(self, method: str) -> None:
        if method == self.method:
            self.method = ""
            raise self.error

    def add(self, request: GenRequest, grammar_filter: Any) -> None:
        if request.request_id != "good":
            self._try("add")
        super().add(request, grammar_filter)

    def score(self, request: GenRequest) -> PromptScores:
        self._try("score")
        return super().score(request)

    def cancel(self, request_id: str) -> bool:
        self._try("cancel")
        return super().cancel(request_id)


@pytest.mark.parametrize("error", UNFORESEEN, ids=lambda err: type(err).__name__)
@pytest.mark.parametrize("method", ["add", "score"])
def test_whatever_a_request_meets_at_its_start_ends_it_and_not_the_thread(
    method: str, error: Exception
) -> None:
    async def scenario() -> None:
        async with running(Torn(method, error)) as worker:
            good, bad = job("good"), job("bad", prompt_logprobs_from=0)
            worker.add(good, None)
            await good.arrived.get()
            worker.add(bad, None)
            for one in (bad, good):  # after such a failure nothing is trusted any more
                assert isinstance((await read(one))[-1], Failed)
            after = job("after", max_tokens=0)
            worker.add(after, None)
            assert isinstance((await read(after))[-1], Done)
            assert worker.alive
            assert worker.counters.failed == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("error", UNFORESEEN, ids=lambda err: type(err).__name__)
def test_a_cancellation_that_fails_does_not_end_the_thread(error: Exception) -> None:
    async def scenario() -> None:
        async with running(Torn("cancel", error)) as worker:
            gone, stays = job("gone"), job("stays")
            for one in (gone, stays):
                worker.add(one, None)
                await one.arrived.get()
            worker.cancel(gone)
            assert isinstance((await read(stays))[-1], Failed)
            after = job("after", max_tokens=0)
            worker.add(after, None)
            assert isinstance((await read(after))[-1], Done)
            assert worker.alive

    asyncio.run(scenario())


def test_an_unforeseen_failure_of_the_new_start_loses_the_engine_in_words() -> None:
    async def scenario() -> None:
        session = Torn("add", TypeError("no such keyword"))
        session.rebuild_error = AttributeError("no generator")
        async with running(session) as worker:
            bad = job("bad")
            worker.add(bad, None)
            assert isinstance((await read(bad))[-1], Failed)
            await until(lambda: not worker.alive)
            assert worker.lost is not None
            assert "no generator" in worker.lost

    asyncio.run(scenario())


class Slow(queue.SimpleQueue):
    """A queue into which one thing, once it is set, comes a moment late."""

    meanwhile: threading.Event | None = None

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if self.meanwhile is not None:
            self.meanwhile.set()
            self.meanwhile = None
            time.sleep(0.1)
        super().put(item, block, timeout)


@pytest.mark.parametrize("arriving", ["request", "end"])
def test_what_arrives_while_the_thread_ends_is_answered(
    monkeypatch: pytest.MonkeyPatch, arriving: str
) -> None:
    """The thread ends between the look at its state and the posting of what arrives."""
    entered, leave = threading.Event(), threading.Event()
    monkeypatch.setattr(exl3_worker.queue, "SimpleQueue", Slow)

    def last(_: FakeSession) -> list[tuple[str, Event]]:
        entered.set()
        leave.wait(10)
        raise torch.AcceleratorError("an illegal memory access")

    async def scenario(worker: Exl3Worker) -> None:
        first, late = job("first"), job("late")
        worker.add(first, None)
        await asyncio.to_thread(entered.wait, 10)
        commands: Any = worker._commands
        commands.meanwhile = leave
        if arriving == "end":
            ended = asyncio.Event()
            loop = asyncio.get_running_loop()
            worker.stop(lambda: loop.call_soon_threadsafe(ended.set))
            await asyncio.wait_for(ended.wait(), 10)
        else:
            worker.add(late, None)
            assert isinstance((await read(late))[-1], Failed)
        assert isinstance((await read(first))[-1], Failed)
        await asyncio.to_thread(worker.join)

    fake: Any = FakeSession(last)
    asyncio.run(scenario(Exl3Worker(fake)))


def test_the_end_comes_even_when_the_session_cannot_let_go() -> None:
    """Cancellations that wait behind the last step do not touch a session that is over."""
    entered, leave = threading.Event(), threading.Event()

    def last(_: FakeSession) -> list[tuple[str, Event]]:
        entered.set()
        leave.wait(10)
        raise torch.AcceleratorError("an illegal memory access")

    async def scenario() -> None:
        session = Torn("cancel", RuntimeError("an illegal memory access"))
        session.scripts.append(last)
        async with running(session) as worker:
            one = job("one")
            worker.add(one, None)
            await asyncio.to_thread(entered.wait, 10)
            worker.cancel(one)
            leave.set()
            assert isinstance((await read(one))[-1], Failed)
        assert session.method == "cancel", "it was not asked"

    asyncio.run(scenario())


def test_a_step_that_meets_the_unforeseen_ends_its_jobs_and_not_the_thread() -> None:
    async def scenario() -> None:
        session = endless(raising(SystemError("a C extension returned nothing")))
        async with running(session) as worker:
            one = job("one")
            worker.add(one, None)
            assert isinstance((await read(one))[-1], Failed)
            assert worker.alive

    asyncio.run(scenario())
