"""Server-sent events: generations written as frames, with pings by the wall clock.

The 200 waits for the first event or two seconds, so that an early failure is a real HTTP error. The
client's disconnect is watched all the time; it leaves the generation, which frees its place.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from glm53_server.api_errors import ApiError
from glm53_server.engine.base import PromptProgress, PromptScores
from glm53_server.generation import Generation, Item
from glm53_server.pipeline import OutputEvent

HEADER_DEADLINE_S = 2.0
PING_INTERVAL_S = 10.0
STALLED_CLIENT_S = 60.0
_WRITE_BYTES = 64 * 1024
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


def frame(data: Mapping[str, Any], event: str | None = None) -> bytes:
    """One frame; JSON keeps non-ASCII text as it is."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {text}\n\n".encode()


class Encoder(Protocol):
    """Writes one API's stream. Every method returns frames, possibly none."""

    ping: bytes

    def start(self) -> bytes: ...

    def event(self, index: int, event: OutputEvent | PromptScores) -> bytes: ...

    def end(self) -> bytes:
        """After the last choice has finished."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """The stream breaks off with this error."""
        ...

    def error_response(self, error: ApiError) -> Response:
        """The error as a whole response, when nothing has been sent."""
        ...


class EventStream(Response):
    """Streams a generation; cancels it when the client goes away."""

    def __init__(self, generation: Generation, encoder: Encoder) -> None:
        super().__init__()
        self._generation = generation
        self._encoder = encoder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = asyncio.create_task(self._respond(scope, receive, send))
        try:
            await until_disconnect(writer, receive)
        finally:
            self._generation.release()

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._generation as generation:
            try:
                first = await _first(generation)
            except ApiError as err:
                await self._encoder.error_response(err)(scope, receive, send)
                return
            headers = [(k.encode(), v.encode()) for k, v in _HEADERS.items()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            try:
                await self._body(generation, first, send)
                last = self._encoder.end()
            except ApiError as err:
                last = self._encoder.failed(err)
            await _write(send, last, more=False)

    async def _body(self, generation: Generation, item: Item | None, send: Send) -> None:
        """Write frames until every choice has finished; a ping after ten seconds without any."""
        loop = asyncio.get_running_loop()
        frames = self._encoder.start()
        ping_at_s = loop.time() + PING_INTERVAL_S
        while True:
            while item is not None:  # what is ready goes out in one write
                frames += self._frames(item)
                item = generation.ready() if len(frames) < _WRITE_BYTES else None
            if not frames and loop.time() >= ping_at_s:
                frames = self._encoder.ping
            if frames:
                await _write(send, frames)
                ping_at_s = loop.time() + PING_INTERVAL_S
            if not generation.open:
                return
            frames = b""
            item = await generation.next(max(0.0, ping_at_s - loop.time()))

    def _frames(self, item: Item) -> bytes:
        index, event = item
        return b"" if isinstance(event, PromptProgress) else self._encoder.event(index, event)


async def _first(generation: Generation) -> Item | None:
    """The first event that a stream may show; None when the headers must not wait for it."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + HEADER_DEADLINE_S
    while (item := await generation.next(max(0.0, deadline_s - loop.time()))) is not None:
        if not isinstance(item[1], PromptProgress):
            return item
    return None


async def _write(send: Send, body: bytes, *, more: bool = True) -> None:
    async with asyncio.timeout(STALLED_CLIENT_S):
        await send({"type": "http.response.body", "body": body, "more_body": more})


async def until_disconnect(work: asyncio.Task[Any], receive: Receive) -> None:
    """Wait for `work`; cancel it when the client disconnects. Raises what `work` raised."""
    watcher = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({work, watcher}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        watcher.cancel()
        if not work.done():
            work.cancel()
        await asyncio.gather(work, watcher, return_exceptions=True)
    if not work.cancelled() and (error := work.exception()) is not None:
        if isinstance(error, (TimeoutError, OSError)):
            return  # the client stopped reading or closed the connection
        raise error


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class ClientGone(Exception):
    """The client of a whole answer disconnected; nobody reads the response."""


async def whole(request: Request, generation: Generation) -> list[list[OutputEvent | PromptScores]]:
    """All events of every choice; raises ApiError, or ClientGone when the client leaves."""

    async def collect() -> list[list[OutputEvent | PromptScores]]:
        async with generation:
            choices: list[list[OutputEvent | PromptScores]] = [[] for _ in range(generation.open)]
            while generation.open:
                item = await generation.next()
                if item is not None and not isinstance(item[1], PromptProgress):
                    choices[item[0]].append(item[1])
            return choices

    work = asyncio.create_task(collect())
    try:
        await until_disconnect(work, request.receive)
    finally:
        generation.release()
    if work.cancelled():
        raise ClientGone
    return work.result()
