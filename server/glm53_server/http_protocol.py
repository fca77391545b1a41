"""uvicorn's HTTP protocol with a deadline for the head of a request.

uvicorn waits as long as a client keeps sending bytes; one byte a second would hold a connection for ever.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_DEADLINE_S = 10.0
HEAD_BYTES = 64 * 1024  # uvicorn's h11_max_incomplete_event_size


class DeadlineProtocol(H11Protocol):
    """Closes the connection when a request's head is not complete within the deadline.

    The clock runs from the connection, and on a kept connection from the next request's first byte.
    """

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self._between_requests:
            self._expect_head()
        super().data_received(data)
        if not self._between_requests:
            self._forget()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    @property
    def _between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_DEADLINE_S, self.transport.close)

    def _forget(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
