"""What may be deleted below the models directory: parts that nothing goes on from, old revisions.

Only what this program made is ever offered: a folder without its lock is somebody else's. What is
pinned, served, or being downloaded is kept.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from glm53ctl import in_use
from glm53ctl.errors import ArtifactError, Conflict
from glm53ctl.fetch import store, verify
from glm53ctl.fetch.catalog import Release
from glm53ctl.fetch.lockfile import PARTIAL, Lock, part_path, read_lock
from glm53ctl.supervisor.state import is_locked, try_lock

_QUIET_S = 600.0


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file or folder to delete. `freed_bytes` leaves out files that have another link."""

    path: str
    freed_bytes: int
    why: str


def leftovers(models_dir: Path, release: Release, used: frozenset[Path]) -> list[Leftover]:
    """What can go, in the order of paths. `used` holds the resolved folders that stay."""
    found = (*_imports(models_dir), *_downloads(models_dir, release, used))
    return sorted(found, key=lambda item: item.path)


def _imports(models_dir: Path) -> Iterator[Leftover]:
    """Imports that were killed. One under way has no lock, but its files change."""
    for folder in models_dir.glob(".*" + store.IMPORTING):
        latest_s = max(item.stat().st_mtime for item in (folder, *folder.rglob("*")))
        if time.time() - latest_s > _QUIET_S:
            yield _leftover(folder, "an import that did not end")


def _downloads(models_dir: Path, release: Release, used: frozenset[Path]) -> Iterator[Leftover]:
    places = {folder.resolve(): folder for folder in (*store.candidates(models_dir), *used)}
    for resolved, folder in places.items():
        lock = read_lock(folder)
        if lock is None or is_locked(folder / PARTIAL / "lock"):
            continue
        if in_use.is_held(folder):
            continue
        inside = folder.parent.resolve() == models_dir.resolve() and not folder.is_symlink()
        if inside and resolved not in used and lock.revision != release.revision:
            why = f"revision {lock.revision[:12]}; this version uses {release.revision[:12]}"
            yield _leftover(folder, why)
        else:
            yield from _stale_parts(folder, lock)


def _stale_parts(folder: Path, lock: Lock) -> Iterator[Leftover]:
    """Parts of files that are whole by now, or of another content than the lock wants."""
    wanted = {part_path(folder, item) for item in verify.missing(folder, lock)}
    for part in (folder / PARTIAL).glob("*.*"):
        if part not in wanted:
            yield _leftover(part, "part of a download that nothing goes on from")


def remove(found: Leftover) -> None:
    """Delete one leftover. Raises ArtifactError when the disk refuses, Conflict for a new download."""
    path = Path(found.path)
    try:
        if path.parent.name == PARTIAL:
            _remove_part(path)
        else:
            with in_use.alone(path):
                shutil.rmtree(path)
    except OSError as err:
        raise ArtifactError(f"cannot remove {path}: {err.strerror}", error_id="ART-003") from err


def _remove_part(part: Path) -> None:
    """Delete a part while holding its folder's download lock; the last one takes the folder along."""
    lock_path = part.parent / "lock"
    fd = try_lock(lock_path)
    if fd is None:
        raise Conflict(f"a download into {part.parent.parent} has begun", hint="wait for it")
    try:
        part.unlink(missing_ok=True)
        lock_path.unlink()
        with suppress(OSError):
            part.parent.rmdir()
    finally:
        os.close(fd)


def _leftover(path: Path, why: str) -> Leftover:
    files = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
    stats = [item.lstat() for item in files]
    return Leftover(str(path), sum(st.st_size for st in stats if st.st_nlink == 1), why)
