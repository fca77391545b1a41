"""What the engines with a thread of their own do alike: take requests, hand their events on, end once."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import Generic, Protocol, TypeVar

from glm53_server.engine.base import Done, EngineError, EngineInfo, Event, Failed, GenRequest
from glm53_server.engine.jobs import Bounds, Counters, Ending, Job


class Worker(Protocol):
    """The thread that computes jobs. All of it may be called from the event loop."""

    counters: Counters

    @property
    def running(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    def cancel(self, job: Job) -> None: ...

    def stop(self, ended: Callable[[], object], /) -> None: ...

    def join(self) -> None: ...


W = TypeVar("W", bound=Worker)


class ThreadedEngine(ABC, Generic[W]):
    """See engine.base.Engine; `state` is the subclass's own. `start` and `release` are what differs."""

    def __init__(self, info: EngineInfo, worker: W) -> None:
        self._info = info
        self._bounds = Bounds(info.vocab_size, info.context_tokens)
        self._worker = worker
        self._ending = Ending(self._end)

    @abstractmethod
    async def start(self, request: GenRequest) -> Job:
        """Give a request that fits to the worker. Raises EngineError when it can never run."""

    @abstractmethod
    def release(self) -> None:
        """Give the model back. The worker has ended."""

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def steps(self) -> int:
        return self._worker.counters.steps

    @property
    def running(self) -> int:
        return self._worker.running

    @property
    def queued(self) -> int:
        return self._worker.waiting

    async def submit(self, request: GenRequest) -> AsyncIterator[Event]:
        """See Engine.submit. A request that can never run fails before anything is computed."""
        try:
            self._bounds.check(request)
            job = await self.start(request)
        except EngineError as err:
            yield Failed(err)
            return
        try:
            while True:
                for event in await job.arrived.get():
                    yield event
                    if isinstance(event, Done | Failed):
                        return
        finally:
            self._worker.cancel(job)

    def stats(self) -> dict[str, object]:
        return self._worker.counters.shown()

    async def close(self) -> None:
        await self._ending.wait()

    async def _end(self) -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._worker.stop(lambda: loop.call_soon_threadsafe(ended.set))
        await ended.wait()
        self._worker.join()
        self.release()
