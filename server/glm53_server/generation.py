"""One HTTP request's generations: engine events through the pipelines into one ordered queue.

Owns the engine's iterators: leaving the context closes them, which cancels the generation at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from glm53_server.api_errors import ApiError, from_engine
from glm53_server.engine.base import (
    Done,
    Engine,
    Event,
    Failed,
    FinishReason,
    GenRequest,
    PromptProgress,
    PromptScores,
    Tokens,
)
from glm53_server.metrics import Metrics, RequestClock
from glm53_server.pipeline import ChoicePipeline, Finish, OutputEvent

log = logging.getLogger("glm53_server")

_QUEUED_EVENTS = 1024  # a client that reads slower than this holds the engine's iterator back

Item = tuple[int, OutputEvent | PromptScores | PromptProgress]


@dataclass(frozen=True, slots=True)
class Choice:
    """One generation of a request and the pipeline of its output."""

    request: GenRequest
    pipeline: ChoicePipeline


class Generation:
    """Use as an async context manager; then call `next` until it returns a Finish per choice.

    It counts as in flight from its construction until `release`.
    """

    def __init__(self, engine: Engine, choices: Sequence[Choice], metrics: Metrics) -> None:
        self._engine = engine
        self._choices = choices
        self._metrics = metrics
        self._queue = asyncio.Queue[Item | ApiError](_QUEUED_EVENTS)
        self._tasks: list[asyncio.Task[None]] = []
        self._failed: ApiError | None = None
        self._open = len(choices)
        self._counted = len(choices)
        metrics.in_flight += self._counted

    @property
    def open(self) -> int:
        """Choices whose Finish has not been handed out."""
        return self._open

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._pump(index, choice))
            for index, choice in enumerate(self._choices)
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.release()

    def release(self) -> None:
        """Give the place in the queue back; for a generation that may never have been entered."""
        self._metrics.in_flight -= self._counted
        self._counted = 0

    async def next(self, timeout_s: float | None = None) -> Item | None:
        """The next event with its choice's index; None after `timeout_s` of silence.

        Raises ApiError when a generation failed.
        """
        if self._failed is None and self._queue.empty():
            try:
                async with asyncio.timeout(timeout_s):
                    return self._handed_out(await self._queue.get())
            except TimeoutError:
                return None
        item = self.ready()
        if item is None and self._failed is not None:
            raise self._failed
        return item

    def ready(self) -> Item | None:
        """The next event if it is there already. A failure is left for `next` to raise."""
        if self._failed is not None or self._queue.empty():
            return None
        item = self._queue.get_nowait()
        if isinstance(item, ApiError):
            self._failed = item
            return None
        return self._handed_out(item)

    def _handed_out(self, item: Item | ApiError) -> Item:
        if isinstance(item, ApiError):
            raise item
        if isinstance(item[1], Finish):
            self._open -= 1
        return item

    async def _pump(self, index: int, choice: Choice) -> None:
        clock = self._metrics.clock(len(choice.request.prompt_ids))
        stream = self._engine.submit(choice.request)
        try:
            await self._follow(index, choice.pipeline, stream, clock)
        except ApiError as err:
            clock.ended("error")
            await self._queue.put(err)
        except asyncio.CancelledError:
            clock.ended("abort")
            raise
        except Exception:
            log.exception("request %s failed", choice.request.request_id)
            clock.ended("error")
            await self._queue.put(ApiError("internal error", 500, "internal_error"))
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    async def _follow(
        self,
        index: int,
        pipeline: ChoicePipeline,
        stream: AsyncIterator[Event],
        clock: RequestClock,
    ) -> None:
        done: Done | None = None
        async for event in stream:
            match event:
                case Tokens():
                    clock.tokens(len(event.ids))
                    for output in pipeline.feed(event):
                        await self._queue.put((index, output))
                case Done():
                    done = event
                case Failed(error):
                    raise from_engine(error)
                case PromptProgress() | PromptScores():
                    await self._queue.put((index, event))
            if done is not None or pipeline.ended:
                break
        _check_end(done, pipeline)
        for output in pipeline.finish(done):
            if isinstance(output, Finish):
                clock.ended(output.reason, output.usage)
            await self._queue.put((index, output))


def _check_end(done: Done | None, pipeline: ChoicePipeline) -> None:
    """A generation that broke off is an error, never a fake stop."""
    if pipeline.ended:
        return
    if done is None:
        raise ApiError("the engine stopped without finishing the request", 503, "engine_lost")
    if done.reason is FinishReason.CANCELLED:
        raise ApiError("the generation was cancelled", 503, "cancelled")
