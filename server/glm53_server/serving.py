"""uvicorn around an engine: when it is ready, how it drains, and what its end is called."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from types import FrameType

import uvicorn

from glm53_server.app import create_app
from glm53_server.engine.base import Engine, EngineState
from glm53_server.http_protocol import HEAD_BYTES, DeadlineProtocol
from glm53_server.service import Service
from glm53ctl.errors import ChildExit
from glm53ctl.plan import Plan

log = logging.getLogger(__name__)

_KEEP_ALIVE_S = 120  # longer than the idle connections clients like to reuse
_CLOSE_S = 5.0  # after the drain: streams get their last event, the engine joins its threads
_LOOK_S = 0.25
_LAST_WORDS_S = 0.5


async def serve(
    engine: Engine,
    plan: Plan,
    listener: socket.socket,
    drain_s: float,
    on_ready: Callable[[], None],
) -> ChildExit:
    """Serve on a listening socket until SIGTERM, or until the engine is lost.

    The first SIGTERM closes the door and lets open streams finish for `drain_s`; a second one, or
    the end of that time, closes the engine, which ends every stream with its last event.
    """
    _log_to_stderr()
    app = create_app(engine, plan)
    config = uvicorn.Config(
        app,
        http=DeadlineProtocol,
        h11_max_incomplete_event_size=HEAD_BYTES,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(drain_s + _CLOSE_S),
        log_level="warning",
        access_log=False,
        lifespan="on",
    )
    server = _Server(config, on_ready)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn installs this handler itself, but when it has finished it puts back what was there
        # and raises the signal again, which would kill us before we return our exit code
        signal.signal(number, server.handle_exit)
    guard = asyncio.create_task(_guard(server, app.state.service, drain_s))
    try:
        await server.serve(sockets=[listener])
    finally:
        guard.cancel()
        try:
            await asyncio.wait_for(engine.close(), _CLOSE_S)
        except TimeoutError:
            pass
        except Exception as err:
            if not server.lost:
                raise
            log.warning("the lost engine could not be given back: %s", err)
    return ChildExit.ENGINE_LOST if server.lost else ChildExit.OK


class LogLine(logging.Formatter):
    """Time with milliseconds and zone, as in the supervisor's lines of the same file."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        del datefmt
        return (
            datetime.fromtimestamp(record.created, UTC)
            .astimezone()
            .isoformat(timespec="milliseconds")
        )


def _log_to_stderr() -> None:
    """Our own lines only: one per request, and what went wrong."""
    log = logging.getLogger("glm53_server")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(LogLine("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)


class _Server(uvicorn.Server):
    """Says when it is ready, and counts how often it was asked to leave."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self.asked = 0
        self.lost = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del sig, frame
        self.asked += 1
        self.should_exit = True


async def _guard(server: _Server, service: Service, drain_s: float) -> None:
    """Leave when the engine is lost, and cut the drain short when it is asked to or too long."""
    left_s = drain_s
    while server.asked < 2 and left_s > 0:
        await asyncio.sleep(_LOOK_S)
        if server.should_exit:
            service.begin_drain()
            left_s -= _LOOK_S
        elif service.engine.state is EngineState.LOST:
            server.lost = server.should_exit = True
            left_s = 0.0
    await asyncio.gather(service.engine.close(), return_exceptions=True)  # serve() tells it
    await asyncio.sleep(_LAST_WORDS_S)
    server.force_exit = True  # what still hangs on now is cut
