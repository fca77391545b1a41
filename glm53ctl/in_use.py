"""Which checkpoints must stay: those that servers hold, and those that the plans of instances name.

A server holds a shared lock on the folder of its checkpoint for as long as it lives. That is true of
`serve`, of containers and of other users too, and needs no file of ours. Whoever removes the folder
takes the lock alone.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from glm53ctl.errors import Conflict
from glm53ctl.paths import Paths
from glm53ctl.supervisor.state import is_locked


@contextmanager
def held(folder: Path) -> Generator[None]:
    """Hold a checkpoint while a server lives. Raises Conflict while somebody removes it.

    Where the file system has no locks, the server goes on without.
    """
    with _locked(folder, fcntl.LOCK_SH, f"{folder} is being removed", "wait, then start again"):
        yield


@contextmanager
def alone(folder: Path) -> Generator[None]:
    """Keep servers off a checkpoint while it is removed. Raises Conflict while one serves it."""
    with _locked(folder, fcntl.LOCK_EX, f"{folder} is in use by a running server", _stop(folder)):
        yield


def _stop(folder: Path) -> str:
    return f"stop it first; its process: fuser -v {folder}"


@contextmanager
def _locked(folder: Path, kind: int, refusal: str, hint: str) -> Generator[None]:
    fd = None
    try:
        with suppress(OSError):
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if fd is not None:
            try:
                fcntl.flock(fd, kind | fcntl.LOCK_NB)
            except BlockingIOError as err:
                raise Conflict(refusal, hint=hint) from err
            except OSError:
                pass  # a network file system without locks
        yield
    finally:
        if fd is not None:
            os.close(fd)


def is_held(folder: Path) -> bool:
    """True while a server holds this checkpoint."""
    try:
        with alone(folder):
            return False
    except Conflict:
        return True


def running(paths: Paths) -> Iterator[tuple[str, Path]]:
    """(instance, resolved checkpoint) of every running instance.

    Raises Conflict for one whose plan does not tell its checkpoint: it could be any.
    """
    for folder in _instances(paths):
        if not _is_locked(folder):
            continue
        served = _checkpoint(folder)
        if served is None:
            option = "" if folder.name == "default" else f" --instance {folder.name}"
            raise Conflict(
                f"instance {folder.name!r} is running, and {folder / 'plan.json'} does not tell "
                "which checkpoint it serves: nothing was removed",
                hint=f"stop it first: glm53ctl down{option}",
            )
        yield folder.name, served


def served(paths: Paths) -> frozenset[Path]:
    """What instances serve or served last, resolved. Raises Conflict as `running` does."""
    last = (_checkpoint(folder) for folder in _instances(paths))
    return frozenset({*(path for _, path in running(paths)), *(path for path in last if path)})


def _instances(paths: Paths) -> list[Path]:
    try:
        return sorted(item for item in paths.state_dir.iterdir() if item.is_dir())
    except FileNotFoundError:
        return []


def _is_locked(folder: Path) -> bool:
    try:
        return is_locked(folder / "lock")
    except OSError:  # not ours to open: it may well be held
        return True


def _checkpoint(folder: Path) -> Path | None:
    """The checkpoint that a plan of any version names; None when there is no telling."""
    try:
        body: Any = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        model = cast("dict[str, Any]", body)["model"]
        return Path(model["path"]).resolve(strict=False) if model["path"] else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError, RuntimeError):
        return None
