"""What `models verify` compares: a download with its lock, the bundled model with its digests.

A folder of somebody else has neither; of that only names and sizes can be checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from glm53ctl.errors import ArtifactError, BadModel

if TYPE_CHECKING:
    from glm53ctl.fetch import Job
    from glm53ctl.fetch.lockfile import Lock

_PULL_HINT = "glm53ctl models pull fetches what is missing or wrong, and only that"


@dataclass(frozen=True, slots=True)
class Subject:
    """A folder to check, and the way out when it is not whole."""

    folder: Path
    hint: str


def subject(wanted: str | None, job: Job) -> Subject:
    """A name as `models list` shows it, a directory, or the downloaded model."""
    from glm53ctl.model_source import FLASH_NAME, TINY_NAME, expanded
    from glm53ctl.paths import tiny_checkpoint

    if wanted == TINY_NAME:
        return Subject(tiny_checkpoint(), "install glm53ctl again: this model is part of it")
    folder = job.folder if wanted in {None, FLASH_NAME} else expanded(str(wanted))
    if folder.resolve() == job.folder.resolve():
        return Subject(job.folder, _PULL_HINT)
    return Subject(folder, "copy these files again from where this checkpoint came from")


def problems(found: Subject, *, quick: bool) -> list[str]:
    """What is wrong, a line per file or tensor. Writes what it learned into the lock.

    Raises BadModel for a folder that is no checkpoint, ArtifactError when nothing tells its right bytes.
    """
    from glm53ctl.fetch import verify
    from glm53ctl.fetch.lockfile import read_lock

    lock = read_lock(found.folder)
    if lock is None:
        return _without_lock(found, quick=quick)
    if quick:
        wrong = verify.quick_problems(found.folder, lock)
        return [f"{item.path}: {item.what}" for item in wrong]
    return _by_lock(found.folder, lock)


def compared(found: Subject, *, quick: bool) -> str:
    """What a folder without problems was held to."""
    from glm53ctl.fetch.lockfile import read_lock

    if quick:
        return "sizes and headers"
    return "every tensor" if read_lock(found.folder) is None else "every sha256"


def _without_lock(found: Subject, *, quick: bool) -> list[str]:
    from glm53ctl.bench import damage
    from glm53ctl.checkpoint import open_checkpoint

    try:
        checkpoint = open_checkpoint(found.folder)
    except BadModel as err:
        if found.hint == _PULL_HINT:
            raise BadModel(err.message, hint=_PULL_HINT) from err
        raise
    if quick:
        return []
    pulled = found.hint == _PULL_HINT
    damaged = None if pulled else damage.damaged_tensors(checkpoint)
    if damaged is not None:
        return [f"{name}: wrong content" for name in damaged]
    raise ArtifactError(
        f"{found.folder} is a checkpoint, but has no lock to compare its bytes with",
        hint="glm53ctl models pull makes one from the hub, and fetches only what is wrong"
        if pulled
        else "copy glm53-lock.json from where it came; --quick checks names and sizes without it",
        error_id="ART-008",
    )


def _by_lock(folder: Path, lock: Lock) -> list[str]:
    """Every sha256, with a progress line."""
    from glm53ctl.fetch import verify
    from glm53ctl.fetch.lockfile import write_lock
    from glm53ctl.fetch.progress import DownloadView, Meter

    meter = Meter(lock.total_bytes)
    view = DownloadView("hash", meter)
    on_bytes = _counter(meter.add, lambda: view.draw(""))
    try:
        lock, wrong = verify.full_problems(folder, lock, on_bytes)
    finally:
        view.close()
    write_lock(folder, lock)
    return [f"{item.path}: {item.what}" for item in wrong]


def _counter(add: Callable[[int], None], draw: Callable[[], None]) -> Callable[[int], None]:
    def on_bytes(count: int) -> None:
        add(count)
        draw()

    return on_bytes
