"""What may be deleted below the models directory: parts that nothing goes on from, old revisions.

Only what this program made is ever offered: a folder without its lock is somebody else's. What is
pinned, served, or being downloaded is kept.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from glm53ctl import in_use
from glm53ctl.errors import ArtifactError, Conflict, Glm53Error
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


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """What looks like ours and is not as we leave it, or cannot be read: to be looked at by hand."""

    path: str
    why: str


def leftovers(
    models_dir: Path, release: Release, own: Path, used: frozenset[Path]
) -> list[Leftover | LeftAlone]:
    """What can go, in the order of paths. `used` holds the resolved folders that stay.

    `own` is where downloads go, inside `models_dir` or not. No symlink is followed.
    """
    found: list[Leftover | LeftAlone] = []
    for folder in models_dir.glob(".*" + store.IMPORTING):
        found += _or_left_alone(folder, _import(folder))
    for folder in {*store.candidates(models_dir), own}:
        found += _or_left_alone(folder, _downloads(folder, models_dir, release, used))
    return sorted(found, key=lambda item: item.path)


def _or_left_alone(
    folder: Path, finding: Iterator[Leftover | LeftAlone]
) -> list[Leftover | LeftAlone]:
    """One odd folder hides no other. One that vanishes meanwhile is none."""
    try:
        return list(finding)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as err:
        return [LeftAlone(str(folder), str(err))]


def _import(folder: Path) -> Iterator[Leftover | LeftAlone]:
    """An import that was killed. One under way has no lock, but its files change."""
    if folder.is_symlink() or not folder.is_dir():
        yield LeftAlone(str(folder), "not a folder: no import made it")
        return
    latest_s = max(held.st_mtime for held in (folder.lstat(), *_inside(folder)))
    if time.time() - latest_s > _QUIET_S:
        yield _leftover(folder, "an import that did not end")


def _downloads(
    folder: Path, models_dir: Path, release: Release, used: frozenset[Path]
) -> Iterator[Leftover | LeftAlone]:
    lock = read_lock(folder)
    partial = folder / PARTIAL
    if lock is None or folder.is_symlink():
        return
    for link in (partial, partial / "lock"):
        if link.is_symlink():
            yield LeftAlone(str(link), "a symlink: what it leads to is not ours")
            return
    if partial.exists() and not partial.is_dir():
        yield LeftAlone(str(partial), "not a folder: no download made it")
        return
    if is_locked(partial / "lock"):
        return
    inside = folder.parent.resolve() == models_dir.resolve() and folder.resolve() not in used
    if inside and lock.revision != release.revision:
        if not in_use.is_held(folder):
            why = f"revision {lock.revision[:12]}; this version uses {release.revision[:12]}"
            yield _leftover(folder, why)
    else:
        yield from _stale_parts(folder, lock)


def _stale_parts(folder: Path, lock: Lock) -> Iterator[Leftover]:
    """Parts of files that are whole by now, or of another content than the lock wants."""
    wanted = {part_path(folder, item) for item in verify.missing(folder, lock)}
    for part in (folder / PARTIAL).glob("*.*"):
        if part not in wanted and (part.is_symlink() or part.is_file()):
            yield _leftover(part, "part of a download that nothing goes on from")


def remove_all(found: list[Leftover]) -> int:
    """Delete all that can be deleted; returns the bytes freed. Raises ArtifactError for the rest."""
    freed_bytes, refused = 0, list[str]()
    for item in found:
        try:
            remove(item)
            freed_bytes += item.freed_bytes
        except Glm53Error as err:
            refused.append(err.message)
    if refused:
        raise ArtifactError(
            f"{len(found) - len(refused)} of {len(found)} removed; not these:\n"
            + "\n".join(f"  {line}" for line in refused),
            hint="once that is put right: glm53ctl models prune --yes",
            error_id="ART-003",
        )
    return freed_bytes


def remove(found: Leftover) -> None:
    """Delete one leftover. Raises ArtifactError when the disk refuses, Conflict for a new download."""
    path = Path(found.path)
    try:
        if path.parent.name == PARTIAL:
            _remove_part(path)
        else:
            with in_use.alone(path):
                shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as err:
        raise ArtifactError(f"cannot remove {path}: {err.strerror}", error_id="ART-003") from err


def _remove_part(part: Path) -> None:
    """Delete a part while holding its folder's download lock; the last one takes the folder along."""
    if part.parent.is_symlink():
        raise Conflict(f"{part.parent} became a symlink", hint="look at it")
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
    stats = list(_inside(path)) if path.is_dir() and not path.is_symlink() else [path.lstat()]
    return Leftover(str(path), sum(_freed_bytes(st) for st in stats), why)


def _freed_bytes(held: os.stat_result) -> int:
    return held.st_size if held.st_nlink == 1 and not stat.S_ISDIR(held.st_mode) else 0


def _inside(folder: Path) -> Iterator[os.stat_result]:
    """What the kernel says of the files and folders below a folder, of symlinks themselves."""
    for base, folders, names in os.walk(folder):
        for name in (*folders, *names):
            with suppress(FileNotFoundError):
                yield (Path(base) / name).lstat()
