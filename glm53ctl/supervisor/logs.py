"""The log of one instance: the child's output and the supervisor's own lines in one file, rotated.

Everybody appends to the same file with O_APPEND, so lines of both interleave whole and nothing is
lost when either dies. Rotation renames the file and asks the child (SIGHUP) to open the new one.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 20 * 1024 * 1024
KEEP = 5
_TAIL_BLOCK_BYTES = 256 * 1024


def open_append(path: Path) -> int:
    """A descriptor that appends to the log. Raises OSError."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def note(path: Path, text: str) -> None:
    """Append one line of the supervisor's own. A full disk must not stop supervision."""
    stamp = datetime.now(UTC).astimezone().isoformat(timespec="milliseconds")
    with suppress(OSError):
        fd = open_append(path)
        try:
            os.write(fd, f"{stamp} supervisor: {text}\n".encode(errors="replace"))
        finally:
            os.close(fd)


def rotate(path: Path, *, max_bytes: int = MAX_BYTES, keep: int = KEEP) -> bool:
    """Shift server.log to server.log.1 and so on when it is large. True: writers must reopen it."""
    try:
        if path.stat().st_size < max_bytes:
            return False
        for number in range(keep - 1, 0, -1):
            old = _numbered(path, number)
            if old.exists():
                old.replace(_numbered(path, number + 1))
        path.replace(_numbered(path, 1))
    except OSError:
        return False
    return True


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def tail(path: Path, lines: int) -> list[str]:
    """The last lines, without line ends; of the rotated file too when the newest is short."""
    found: deque[str] = deque(maxlen=lines)
    for source in (_numbered(path, 1), path):
        with suppress(OSError), source.open("rb") as file:
            found.extend(_last_lines(file, lines))
    return list(found)


def _last_lines(file: BinaryIO, lines: int) -> list[str]:
    """The last lines of an open log; leaves the position at the end of what was read."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - max(_TAIL_BLOCK_BYTES, lines * 512)))
    text = file.read().decode(errors="replace")
    return text.splitlines()[-lines:] if lines else []


def follow(
    path: Path, lines: int, *, until: Callable[[], bool], poll_s: float = 0.2
) -> Iterator[str]:
    """The last lines, then new ones as they come, over rotations; ends when `until()` says so."""
    file: BinaryIO | None = None
    first = True
    try:
        while True:
            ending = until()
            if file is None and path.exists():
                file = path.open("rb")
                if first:
                    yield from _last_lines(file, lines)
            first = False
            if file is not None:
                yield from _new_lines(file)
                if _replaced(path, file.fileno()):
                    yield from _new_lines(file)
                    for skipped in _rotated_since(path, file.fileno()):
                        yield from _new_lines(skipped)
                    file.close()
                    file = None
                    continue
            if ending:
                return
            time.sleep(poll_s)
    finally:
        if file is not None:
            file.close()


def _new_lines(file: BinaryIO) -> Iterator[str]:
    for line in file:
        yield line.decode(errors="replace").rstrip("\n")


def _replaced(path: Path, fd: int) -> bool:
    try:
        return path.stat().st_ino != os.fstat(fd).st_ino
    except FileNotFoundError:
        return False


def _rotated_since(path: Path, fd: int) -> Iterator[BinaryIO]:
    """Files between an open one that was rotated away and the newest, oldest first."""
    inode = os.fstat(fd).st_ino
    between: list[Path] = []
    for number in range(1, KEEP + 1):
        older = _numbered(path, number)
        if not older.exists() or older.stat().st_ino == inode:
            break
        between.append(older)
    for older in reversed(between):
        with older.open("rb") as file:
            yield file
