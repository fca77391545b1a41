"""Can the planned address be listened on, and who has it if not. Looks, never takes."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from glm53ctl.errors import Conflict, UsageError
from glm53ctl.plan import ListenPlan

_MAX_COMMAND = 80


@dataclass(frozen=True, slots=True)
class Owner:
    """A listening socket and its process; parts another user's process hides are None."""

    address: str
    pid: int | None = None
    command: str | None = None
    unit: str | None = None
    instance: str | None = None  # ours, by that name

    def __str__(self) -> str:
        if self.pid is None:
            return f"{self.address} is held by a process of another user"
        unit = f" of {self.unit}" if self.unit else ""
        return f"{self.address} is held by pid {self.pid}{unit}: {self.command}"


def check_address(listen: ListenPlan) -> None:
    """Raises Conflict naming the owner of a taken port, UsageError for an address not ours.

    Tests the exact address, as the server will bind it; a port is never moved silently, because
    clients are configured with it.
    """
    if listen.port == 0:
        return
    try:
        _try_bind(listen)
    except (socket.gaierror, UnicodeError) as err:  # the second for a name that IDNA refuses
        why = err.strerror if isinstance(err, OSError) else err
        raise UsageError(f"{listen.host!r} is not an address: {why}", error_id="NET-005") from err
    except OSError as err:
        _explain(err, listen)


def _try_bind(listen: ListenPlan) -> None:
    family, kind, protocol, _, address = socket.getaddrinfo(
        listen.host or "0.0.0.0", listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _explain(err: OSError, listen: ListenPlan) -> None:
    where = f"{listen.host}:{listen.port}"
    match err.errno:
        case errno.EADDRINUSE:
            raise taken(listen) from err
        case errno.EADDRNOTAVAIL:
            raise UsageError(
                f"{listen.host} is not an address of this machine",
                hint="listen on 127.0.0.1, on 0.0.0.0, or on an address `ip addr` shows",
                error_id="NET-005",
            ) from err
        case errno.EACCES:
            raise UsageError(
                f"no permission to listen on {where}",
                hint="ports below 1024 need root; choose a higher one with --port",
                error_id="NET-003",
            ) from err
        case _:
            raise Conflict(f"cannot listen on {where}: {err.strerror}") from err


def another(port: int) -> int:
    """A port to offer in place of one."""
    return port + 1 if port < 65535 else 8080


def taken(listen: ListenPlan) -> Conflict:
    """The error for a port somebody else listens on."""
    owner = owner_of(listen.port)
    what = str(owner) if owner else f"{listen.host}:{listen.port} is in use"
    stop = "stop it"
    if owner and owner.instance:
        option = "" if owner.instance == "default" else f" --instance {owner.instance}"
        what = (
            f"{owner.address} is held by pid {owner.pid}, the server of instance {owner.instance!r}"
        )
        stop = f"stop it: glm53ctl down{option}"
    return Conflict(
        what,
        hint=f"{stop}, or take another port: `up` with your other options and --port {another(listen.port)}",
        error_id="NET-001",
    )


def owner_of(port: int) -> Owner | None:
    """Who listens on a TCP port of this machine; None when nobody does."""
    import psutil

    for found in psutil.net_connections(kind="tcp"):
        if found.status != psutil.CONN_LISTEN:
            continue
        host, taken_port = cast("tuple[str, int]", found.laddr)
        if taken_port != port:
            continue
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if found.pid is None:
            return Owner(address)
        with suppress(psutil.Error):
            words = psutil.Process(found.pid).cmdline()
            command = _shortened(" ".join(words))
            return Owner(address, found.pid, command, _unit(found.pid), instance_served(words))
    return None


def _shortened(command: str) -> str:
    return command if len(command) <= _MAX_COMMAND else command[: _MAX_COMMAND - 1] + "…"


def instance_served(words: Sequence[str]) -> str | None:
    """The instance whose server has this command line; None for other programs and for `serve`."""
    if "glm53_server" not in words or "--plan" not in words[:-1]:
        return None
    folder = Path(words[words.index("--plan") + 1]).parent
    supervised = (folder / "state.json").exists() or not folder.exists()  # removed under it
    return folder.name if supervised else None


def _unit(pid: int) -> str | None:
    """The systemd service of a process, if it runs in one."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
        for part in text.replace("\n", "/").split("/"):
            if part.endswith(".service"):
                return part
    return None
