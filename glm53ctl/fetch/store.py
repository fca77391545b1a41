"""Which checkpoints are on this machine, which of them are whole, and taking one over or away."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from glm53ctl import in_use
from glm53ctl.checkpoint import open_checkpoint
from glm53ctl.errors import ArtifactError, BadModel, Conflict
from glm53ctl.fetch import verify
from glm53ctl.fetch.catalog import Release
from glm53ctl.fetch.lockfile import LOCK_NAME, PARTIAL, Lock, LockedFile, read_lock, write_lock
from glm53ctl.fetch.space import check_room
from glm53ctl.probes.system import System

IMPORTING = ".importing"  # how the folder of an import under way ends
_DISK_HINT = "choose another place: GLM53_MODELS_DIR=/path"


@dataclass(frozen=True, slots=True)
class Stored:
    """One checkpoint folder. `state`: complete, incomplete, or unknown where no lock says."""

    name: str
    path: str
    state: str
    size_bytes: int
    revision: str | None
    problems: tuple[str, ...] = ()


def is_incomplete(folder: Path) -> bool:
    """Whether `folder` needs a download: it is missing or empty, or its lock says so.

    A folder without a lock that holds anything is somebody else's: it is taken as it is.
    """
    lock = read_lock(folder)
    if lock is not None:
        return bool(verify.quick_problems(folder, lock))
    return not folder.is_dir() or not any(
        not item.name.startswith(".") and item.name != "lost+found" for item in folder.iterdir()
    )


def describe(name: str, folder: Path) -> Stored:
    """A folder as `models list` shows it; reads sizes and headers only."""
    lock = read_lock(folder)
    held = size_bytes(folder)
    if lock is not None:
        problems = tuple(f"{it.path}: {it.what}" for it in verify.quick_problems(folder, lock))
        state = "incomplete" if problems else "complete"
        return Stored(name, str(folder), state, held, lock.revision, problems)
    try:
        open_checkpoint(folder)
    except BadModel as err:
        return Stored(name, str(folder), "incomplete", held, None, (err.message,))
    return Stored(name, str(folder), "unknown", held, None)


def size_bytes(folder: Path) -> int:
    """Bytes of the files of a checkpoint folder; 0 when there is none."""
    return sum(item.stat().st_size for item in _files(folder))


def candidates(models_dir: Path) -> list[Path]:
    """Folders below `models_dir` that look like a checkpoint, whole or not."""
    try:
        return sorted(item for item in models_dir.iterdir() if _looks_like_one(item))
    except OSError:
        return []


def _looks_like_one(folder: Path) -> bool:
    try:
        return folder.is_dir() and any(
            (folder / name).exists() for name in (LOCK_NAME, PARTIAL, "config.json")
        )
    except OSError:  # not ours to read
        return False


def import_from(
    release: Release, source: Path, target: Path, *, copy: bool, on_bytes: Callable[[int], None]
) -> Lock:
    """Take over a copy of the checkpoint: check it, link its files into `target`, write a lock.

    Reads every byte once and changes nothing in `source`. Files are hard links where the disk is the
    same; on another disk only `copy` makes copies. Raises BadModel or ArtifactError, leaving no target.
    """
    if target.exists() and any(target.iterdir()):
        raise ArtifactError(
            f"{target} is there already",
            hint="glm53ctl models verify checks it, glm53ctl models rm removes it",
        )
    open_checkpoint(source)
    if not copy and _device(target) != source.stat().st_dev:
        raise ArtifactError(
            f"{source} is on another disk than {target.parent}: a link is not possible",
            hint=f"serve it where it is: glm53ctl up --model {source}\n"
            f"or copy it: glm53ctl models import --copy {source}",
        )
    if copy and (disk := System().disk_space(target)) is not None:
        needed = size_bytes(source)
        check_room(target, disk, missing_bytes=needed, total_bytes=needed, missing_files=100)
    lock = _lock_of(release, source, on_bytes)
    temporary = target.with_name(f".{target.name}{IMPORTING}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        for item in lock.files:
            place = temporary / item.path
            place.parent.mkdir(parents=True, exist_ok=True)
            if copy:
                shutil.copyfile(source / item.path, place)
            else:
                place.hardlink_to((source / item.path).resolve())
        write_lock(temporary, lock)
        temporary.replace(target)
    except OSError as err:
        shutil.rmtree(temporary, ignore_errors=True)
        raise ArtifactError(
            f"cannot import into {target}: {err.strerror}", hint=_DISK_HINT, error_id="ART-003"
        ) from err
    return lock


def _lock_of(release: Release, source: Path, on_bytes: Callable[[int], None]) -> Lock:
    """Hash a checkpoint. Raises BadModel where a confirmed fact of the release is contradicted."""
    _refuse_other_model(release, source)
    before = read_lock(source)
    entries = {item.path: item for item in before.files} if before else {}
    found: list[LockedFile] = []
    files = sorted(_files(source))
    for file, digest in zip(files, verify.hash_files(files, on_bytes), strict=True):
        path = file.relative_to(source).as_posix()
        expected = entries.get(path)
        known = release.known_file(path)
        right = expected.sha256 if expected else known.sha256 if known and known.confirmed else None
        if right is not None and digest != right:
            raise BadModel(
                f"{file} is damaged or from another revision: sha256 {digest[:12]}…, "
                f"must be {right[:12]}…",
                hint="download the model: glm53ctl models pull",
            )
        origin = "known" if known and known.sha256 == digest else "learned"
        held = file.stat().st_size
        found.append(LockedFile(path, held, digest, None, origin, verified=True))
    gone = sorted(
        item.path
        for item in release.known
        if item.confirmed and item.path not in {entry.path for entry in found}
    )
    if gone:
        raise BadModel(f"{source} lacks {', '.join(gone)}", hint="download: glm53ctl models pull")
    return Lock(release.repo, release.revision, tuple(found))


def _refuse_other_model(release: Release, source: Path) -> None:
    """Raises BadModel when nothing here is of the release's size, before anything is hashed."""
    held = [item for item in release.known if item.confirmed and (source / item.path).is_file()]
    other = [item for item in held if (source / item.path).stat().st_size != item.size_bytes]
    if len(other) > 1 and other == held:
        names = ", ".join(item.path for item in other)
        raise BadModel(
            f"{source} is another model than {release.name}: {names} differ",
            hint=f"import takes a copy of {release.name}; to serve this one: "
            f"glm53ctl up --model {shlex.quote(str(source))}",
        )


def remove(folder: Path, models_dir: Path, used_by: tuple[str, ...]) -> int:
    """Delete a checkpoint folder below `models_dir`; returns the bytes that its files had.

    Raises Conflict while a running instance serves it, ArtifactError for anything that is not a
    checkpoint folder of ours.
    """
    inside = folder.resolve().parent == models_dir.resolve()
    if not inside or folder.is_symlink() or folder not in candidates(models_dir):
        raise ArtifactError(
            f"{folder} is not a checkpoint in {models_dir}",
            hint="glm53ctl models list shows what can be removed",
        )
    if used_by:
        raise Conflict(
            f"{folder} is in use by {', '.join(used_by)}",
            hint="stop it first: glm53ctl down, or Ctrl-C where it serves",
        )
    held = size_bytes(folder)
    try:
        with in_use.alone(folder):
            shutil.rmtree(folder)
    except OSError as err:
        raise ArtifactError(f"cannot remove {folder}: {err.strerror}") from err
    return held


def _files(folder: Path) -> Iterator[Path]:
    """The files of a checkpoint: not our lock, not hidden ones or those of partial downloads."""
    for base, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and name != LOCK_NAME:
                yield Path(base) / name


def _device(path: Path) -> int:
    """The device that a path is on, or would be on."""
    while not path.exists():
        path = path.parent
    return path.stat().st_dev
