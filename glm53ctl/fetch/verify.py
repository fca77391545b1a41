"""Is a checkpoint folder what its lock says: quickly by sizes and headers, or fully by sha256."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from glm53ctl.fetch.lockfile import Lock, LockedFile

CHUNK_BYTES = 1 << 20
UNVERIFIED = "not verified yet"  # as far as a quick look goes, the file may be right
_READERS = 4
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one file, in words."""

    path: str
    what: str


def quick_problems(folder: Path, lock: Lock) -> list[Problem]:
    """Check sizes and safetensors headers; reads no tensor. For every start."""
    found: list[Problem] = []
    for item in lock.files:
        what = quick_problem(folder, item)
        if what is not None:
            found.append(Problem(item.path, what))
    return found


def quick_problem(folder: Path, item: LockedFile) -> str | None:
    file = folder / item.path
    try:
        size_bytes = file.stat().st_size
    except OSError:
        return "missing"
    if size_bytes != item.size_bytes:
        state = "truncated" if size_bytes < item.size_bytes else "too long"
        return f"{state}: {size_bytes} bytes, must be {item.size_bytes}"
    if not item.verified:
        return UNVERIFIED
    return safetensors_problem(file) if file.suffix == ".safetensors" else None


def missing(folder: Path, lock: Lock) -> list[LockedFile]:
    """Files that are not there, not whole or not verified; the largest first."""
    found = [item for item in lock.files if quick_problem(folder, item) is not None]
    return sorted(found, key=lambda item: -item.size_bytes)


def safetensors_problem(file: Path) -> str | None:
    """Whether the header of a safetensors file describes exactly the bytes that follow it."""
    size_bytes = file.stat().st_size
    try:
        with file.open("rb") as stream:
            header_bytes = int.from_bytes(stream.read(8), "little")
            if header_bytes > min(size_bytes, _MAX_HEADER_BYTES):
                return "not a safetensors file"
            header = cast("dict[str, Any]", json.loads(stream.read(header_bytes)))
        ends = [int(item["data_offsets"][1]) for name, item in header.items() if name[:2] != "__"]
    except OSError as err:
        return f"cannot be read: {err.strerror}"
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return "its safetensors header is damaged"
    described = 8 + header_bytes + max(ends, default=0)
    if described != size_bytes:
        return f"{size_bytes} bytes, its header describes {described}"
    return None


def full_problems(
    folder: Path, lock: Lock, on_bytes: Callable[[int], None]
) -> tuple[Lock, list[Problem]]:
    """Hash every file. Returns the lock with what was learned and verified, and the problems.

    Reads the whole checkpoint once and leaves the page cache as it was.
    """
    quick = {item.path: quick_problem(folder, item) for item in lock.files}
    whole = [item for item in lock.files if quick[item.path] in {None, UNVERIFIED}]
    digests = hash_files([folder / item.path for item in whole], on_bytes)
    for item, digest in zip(whole, digests, strict=True):
        what = quick[item.path] = mismatch(item, digest, folder / item.path)
        lock = lock.with_file(replace(item, verified=False) if what else learned(item, digest))
    return lock, [Problem(path, what) for path, what in quick.items() if what is not None]


def learned(item: LockedFile, digest: str) -> LockedFile:
    """The entry of a file whose bytes were hashed and are right."""
    source = item.source if item.sha256 else "learned"
    return LockedFile(item.path, item.size_bytes, digest, item.git_oid, source, verified=True)


def mismatch(item: LockedFile, digest: str, file: Path) -> str | None:
    """Whether content is not the locked one: by sha256, or by git's hash where that is all there is."""
    if item.sha256 is not None:
        wrong = digest != item.sha256
        return (
            f"wrong content: sha256 {digest[:12]}…, must be {item.sha256[:12]}…" if wrong else None
        )
    if item.git_oid is not None and git_oid(file) != item.git_oid:
        return f"wrong content: not git object {item.git_oid[:12]}…"
    return None


def hash_files(files: list[Path], on_bytes: Callable[[int], None]) -> list[str]:
    """The sha256 of each file, several at a time: one core is slower than an SSD.

    `on_bytes` is called from several threads. An interrupt ends the reading at once.
    """
    stopped = threading.Event()

    def count(read: int) -> None:
        if stopped.is_set():
            raise InterruptedError
        on_bytes(read)

    with ThreadPoolExecutor(_READERS) as pool:
        try:
            return list(pool.map(partial(sha256_of, on_bytes=count), files))
        except BaseException:
            stopped.set()
            raise


def sha256_of(file: Path, on_bytes: Callable[[int], None]) -> str:
    """The sha256 of a file. `on_bytes` gets the size of every piece read."""
    digest = hashlib.sha256()
    for chunk in read_uncached(file):
        digest.update(chunk)
        on_bytes(len(chunk))
    return digest.hexdigest()


def read_uncached(file: Path) -> Iterator[bytes]:
    """The file in pieces; what was read leaves the page cache again, 125 GB would empty it."""
    with file.open("rb", buffering=0) as stream:
        position = 0
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk
            os.posix_fadvise(stream.fileno(), position, len(chunk), os.POSIX_FADV_DONTNEED)
            position += len(chunk)


def git_oid(file: Path) -> str:
    """The name git gives to a file's content."""
    content = file.read_bytes()
    header = f"blob {len(content)}\0".encode()
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest()
