"""The steps between a plan and a running server that can fail, and what each failure is called.

Every failure leaves here as a `LaunchError`: an exit code for the supervisor and words for a human.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import os
import signal
import socket

from glm53_server.engine.base import Engine, Progress
from glm53ctl.errors import (
    ArtifactError,
    Blocked,
    ChildExit,
    Conflict,
    Glm53Error,
    UsageError,
)
from glm53ctl.plan import EngineName, ListenPlan, Plan

ENGINE_MODULES = {
    EngineName.EXL3: "glm53_server.engine.exl3",
    EngineName.STOCK: "glm53_server.engine.exl3",
    EngineName.CPU: "glm53_server.engine.cpu",
    EngineName.SCRIPTED: "glm53_server.engine.scripted",
}

_EXITS: tuple[tuple[type[Glm53Error], ChildExit], ...] = (
    (UsageError, ChildExit.USAGE),
    (Blocked, ChildExit.NO_GPU),
    (ArtifactError, ChildExit.BAD_MODEL),
    (Conflict, ChildExit.PORT_TAKEN),
)
_PR_SET_PDEATHSIG = 1
_BACKLOG = 1024


class LaunchError(Exception):
    """A start that cannot succeed."""

    def __init__(
        self, code: ChildExit, message: str, *, error_id: str, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.error_id = error_id
        self.hint = hint

    @classmethod
    def of(cls, err: Glm53Error) -> LaunchError:
        """Translate one of the project's errors. An error may carry its own `child_exit`."""
        found = next((code for kind, code in _EXITS if isinstance(err, kind)), ChildExit.CRASH)
        code = getattr(err, "child_exit", found)
        return cls(code, err.message, error_id=err.error_id, hint=err.hint)


def die_with_parent(parent_pid: int) -> bool:
    """Have the kernel kill this process when its parent dies. False: the parent is gone already."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    return os.getppid() == parent_pid


def listen(where: ListenPlan) -> socket.socket:
    """Take the planned address before anything slow happens.

    SO_REUSEADDR lets a restart past connections the last process left behind; it does not let two
    servers share a port, because the kernel refuses it while somebody listens.
    """
    host = where.host or "0.0.0.0"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as err:
        raise LaunchError(
            ChildExit.USAGE, f"{host!r} is not an address: {err.strerror}", error_id="NET-005"
        ) from err
    server = socket.socket(family, kind, protocol)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(address)
        server.listen(_BACKLOG)
    except OSError as err:
        server.close()
        raise _listen_error(err, where) from err
    return server


def _listen_error(err: OSError, listen: ListenPlan) -> LaunchError:
    """What a refused bind or listen means."""
    where = f"{listen.host}:{listen.port}"
    match err.errno:
        case errno.EADDRINUSE:
            return LaunchError(
                ChildExit.PORT_TAKEN, f"{where} is in use by another process", error_id="NET-001"
            )
        case errno.EADDRNOTAVAIL:
            return LaunchError(
                ChildExit.USAGE,
                f"{listen.host} is not an address of this machine",
                error_id="NET-005",
                hint="listen on 127.0.0.1, on 0.0.0.0, or on an address `ip addr` shows",
            )
        case errno.EACCES:
            return LaunchError(
                ChildExit.USAGE,
                f"no permission to listen on {where}",
                error_id="NET-003",
                hint="ports below 1024 need root; choose a higher one with --port",
            )
        case _:
            return LaunchError(
                ChildExit.CRASH, f"cannot listen on {where}: {err.strerror}", error_id="NET-004"
            )


def set_affinity(cpus: tuple[int, ...]) -> None:
    """Run on the planned CPUs only. An empty plan leaves the mask alone."""
    if not cpus:
        return
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as err:
        raise LaunchError(
            ChildExit.USAGE,
            f"the plan's CPUs {sorted(cpus)} are not available to this process: {err.strerror}",
            error_id="PLAN-001",
            hint="run `glm53ctl up` again: it makes a new plan",
        ) from err


def load_engine(plan: Plan, progress: Progress) -> Engine:
    """Import and load the planned engine. Raises LaunchError for what no restart can heal."""
    try:
        module = importlib.import_module(ENGINE_MODULES[plan.engine])
        return module.load(plan, progress)
    except Glm53Error as err:
        raise LaunchError.of(err) from err
    except ImportError as err:
        raise LaunchError(
            ChildExit.UNSUPPORTED,
            f"the {plan.engine} engine is not installed: {err}",
            error_id="ENG-001",
            hint=f"install the extra it needs: pip install 'glm53ctl[{_extra(plan.engine)}]'",
        ) from err
    except (MemoryError, RuntimeError, OSError) as err:
        if not out_of_memory(err):
            raise
        raise LaunchError(
            ChildExit.NO_MEMORY,
            f"not enough memory to load the model: {err or 'allocation refused'}",
            error_id="MEM-001",
            hint="`glm53ctl plan` shows what needs how much",
        ) from err


def out_of_memory(err: BaseException) -> bool:
    """True for a refused allocation. torch's class is known by name: it is not imported here."""
    named = any(kind.__name__ == "OutOfMemoryError" for kind in type(err).__mro__)
    refused = isinstance(err, OSError) and err.errno == errno.ENOMEM
    return isinstance(err, MemoryError) or named or refused


def _extra(engine: EngineName) -> str:
    return {EngineName.CPU: "cpu", EngineName.SCRIPTED: "server"}.get(engine, "cuda")
