"""glm53-lock.json: what a checkpoint folder must hold, file by file, with sizes and sha256.

Written into the folder itself, so that a copy on another disk still proves that it is complete
without a network. A file is `verified` once its bytes were hashed on this side.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard, cast

from glm53ctl.supervisor.state import write_atomic

LOCK_NAME = "glm53-lock.json"
PARTIAL = ".glm53-partial"  # the folder inside where files arrive
SCHEMA = "glm53ctl.lock/1"
_NAME_BYTES, _PATH_CHARS = 255, 1000  # what file systems take


@dataclass(frozen=True, slots=True)
class LockedFile:
    """One file. `sha256` is None until it is known, `source` says from where: known, hub, learned.

    `git_oid` is the hash git has for a small file that the hub keeps outside its large-file storage.
    """

    path: str
    size_bytes: int
    sha256: str | None = None
    git_oid: str | None = None
    source: str = "hub"
    verified: bool = False

    @property
    def content_id(self) -> str:
        """What a partial download of this very content is named after."""
        return (self.sha256 or self.git_oid or "unknown")[:16]


@dataclass(frozen=True, slots=True)
class Lock:
    repo: str
    revision: str
    files: tuple[LockedFile, ...]
    schema: str = SCHEMA

    @property
    def total_bytes(self) -> int:
        return sum(item.size_bytes for item in self.files)

    @property
    def complete(self) -> bool:
        return all(item.verified for item in self.files)

    def with_file(self, changed: LockedFile) -> Lock:
        """This lock with one entry replaced by the one of the same path."""
        files = tuple(changed if item.path == changed.path else item for item in self.files)
        return replace(self, files=files)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def part_path(folder: Path, item: LockedFile) -> Path:
    """Where the bytes of a file arrive before they are known to be right."""
    return folder / PARTIAL / f"{item.path.replace('/', '__')}.{item.content_id}"


def read_lock(folder: Path) -> Lock | None:
    """The lock of a folder; None when there is none, or none that this version can read."""
    try:
        found = json.loads((folder / LOCK_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    body = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if body.get("schema") != SCHEMA:
        return None
    try:
        files = tuple(LockedFile(**item) for item in body["files"])
        lock = Lock(body["repo"], body["revision"], files)
    except (KeyError, TypeError):
        return None
    named = _is_text(lock.repo) and _is_text(lock.revision)
    return lock if named and all(_is_usable(item) for item in files) else None


def _is_usable(item: LockedFile) -> bool:
    """False for values of a wrong type, and for a path that leads out of the folder."""
    return (
        _is_inside(item.path)
        and type(item.size_bytes) is int
        and 0 <= item.size_bytes < 1 << 63
        and all(one is None or _is_hash(one) for one in (item.sha256, item.git_oid))
        and _is_text(item.source)
        and type(item.verified) is bool
    )


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value.isprintable()


def _is_inside(path: object) -> bool:
    """True for `a/b.bin`: relative, printable, each name one that a file can have."""
    if not _is_text(path) or len(path) > _PATH_CHARS:
        return False
    return all(
        part not in {".", ".."} and 0 < len(part.encode()) <= _NAME_BYTES
        for part in path.split("/")
    )


def _is_hash(value: object) -> bool:
    """Hashes are part of the names of partial downloads."""
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{1,64}", value) is not None


def write_lock(folder: Path, lock: Lock) -> None:
    """Replace the lock of a folder at once. Raises OSError."""
    write_atomic(folder / LOCK_NAME, lock.to_json())
