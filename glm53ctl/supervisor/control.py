"""The control socket: one JSON line in, JSON lines out. A request only posts events or reads a record.

{"verb": "status"}                    one record
{"verb": "watch"}                     a record now and after every change, until the supervisor ends
{"verb": "stop", "drain_s": 30.0}     {"ok": true}, and the supervisor ends when the child has
{"verb": "restart", "drain_s": 30.0}  {"ok": true}
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Protocol, cast

Record = dict[str, Any]
_MAX_REQUEST_BYTES = 64 * 1024
# Python 3.13 would remove the socket's file by the name it was bound with, and that was a short name
# of another process.
_OPTIONS: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}


class Controlled(Protocol):
    """What the control socket may ask of the supervisor."""

    def record(self) -> Record:
        """The current state, JSON-ready."""
        ...

    def changes(self) -> AsyncIterator[Record]:
        """The current record, then one after each change; ends with the supervisor."""
        ...

    def ask_stop(self, drain_s: float | None) -> None:
        """Post a Stop event; returns at once."""
        ...

    def ask_restart(self, drain_s: float | None) -> None:
        """Post a Restart event; returns at once."""
        ...


async def serve_control(listener: socket.socket, target: Controlled) -> asyncio.Server:
    """Answer on a listening unix socket until the returned server is closed."""

    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            try:
                line = await reader.readline()
                await _answer(_parse(line), target, lambda body: _send(writer, body), writer)
            finally:
                writer.close()

    return await asyncio.start_unix_server(
        on_client, sock=listener, limit=_MAX_REQUEST_BYTES, **_OPTIONS
    )


def _parse(line: bytes) -> Record:
    try:
        body = json.loads(line)
    except ValueError:
        return {}
    return cast("Record", body) if isinstance(body, dict) else {}


def _send(writer: asyncio.StreamWriter, body: Record) -> None:
    writer.write(json.dumps(body, ensure_ascii=False).encode(errors="replace") + b"\n")


async def _answer(
    request: Record,
    target: Controlled,
    send: Callable[[Record], None],
    writer: asyncio.StreamWriter,
) -> None:
    drain_s = request.get("drain_s")
    drain_s = float(drain_s) if isinstance(drain_s, int | float) else None
    match request.get("verb"):
        case "status":
            send(target.record())
        case "watch":
            async for record in target.changes():
                send(record)
                await writer.drain()
        case "stop":
            target.ask_stop(drain_s)
            send({"ok": True})
        case "restart":
            target.ask_restart(drain_s)
            send({"ok": True})
        case verb:
            send({"ok": False, "error": f"unknown verb {verb!r}"})
    await writer.drain()
