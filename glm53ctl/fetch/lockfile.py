"""glm53-lock.json: what a checkpoint folder must hold, file by file, with sizes and sha256.

Written into the folder itself, so that a copy on another disk still proves that it is complete
without a network. A file is `verified` once its bytes were hashed on this side.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from glm53ctl.supervisor.state import write_atomic

LOCK_NAME = "glm53-lock.json"
PARTIAL = ".glm53-partial"  # the folder inside where files arrive
SCHEMA = "glm53ctl.lock/1"


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
    except (OSError, ValueError):
        return None
    body = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if body.get("schema") != SCHEMA:
        return None
    try:
        files = tuple(LockedFile(**item) for item in body["files"])
        return Lock(str(body["repo"]), str(body["revision"]), files)
    except (KeyError, TypeError):
        return None


def write_lock(folder: Path, lock: Lock) -> None:
    """Replace the lock of a folder at once. Raises OSError."""
    write_atomic(folder / LOCK_NAME, lock.to_json())
