"""A scripted session below the engine thread, and readers of its jobs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from glm53_server.engine.base import (
    Done,
    EngineError,
    Event,
    Failed,
    FinishReason,
    GenRequest,
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
