"""Processes of a server that left its session, such as a worker that called setsid: found and ended.

A server and all it starts inherit a variable that names the instance's folder. Nothing else carries it,
so it proves whose process it is; pids and names prove nothing.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from glm53ctl.supervisor.state import Identity

_VARIABLE = "GLM53CTL_SERVER_OF"
_PERIOD_S = 0.02


def mark(folder: Path) -> dict[str, str]:
    """What the environment of a server of this instance needs."""
    return {_VARIABLE: str(folder)}


def strays(folder: Path) -> list[Identity]:
    """Live processes of this user that were started by a server of this instance, itself included."""
    return list(_marked(os.fsencode(f"{_VARIABLE}={folder}")))


def _marked(wanted: bytes) -> Iterator[Identity]:
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # another user's, or gone meanwhile
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found = Identity.of(int(entry.name))
                if found is not None:
                    yield found


def end_strays(folder: Path, *, limit_s: float) -> list[Identity]:
    """Kill them and wait; what even SIGKILL does not end is returned. Only while no server runs."""
    left = strays(folder)
    for process in left:
        if process.alive():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + limit_s
    while (left := [item for item in left if item.alive()]) and time.monotonic() < deadline:
        time.sleep(_PERIOD_S)
    return left
