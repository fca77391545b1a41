"""One instance on disk: where its files are, its lock, and its state record.

The held flock is the truth about "is it running"; the JSON record is information about it. A process
is identified by pid, kernel start ticks and boot id, never by a pid alone: pids are reused.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from glm53ctl.errors import UsageError

SCHEMA = "glm53ctl.state/1"
_ALWAYS = {  # what readers of a record rely on
    *("instance", "mode", "engine", "model", "fingerprint", "url", "supervisor", "child"),
    *("phase", "phase_s", "progress", "health", "health_words", "uptime_s", "exit_code"),
    *("restarts", "crashes", "ever_ready", "retry_in_s", "last_failure"),
}
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Instance:
    """The files of one instance. `folder` is private to it, `socket_path` is in a runtime directory."""

    name: str
    folder: Path
    socket_path: Path

    @classmethod
    def locate(cls, name: str, *, folder: Path, runtime_dir: Path) -> Instance:
        """Raises UsageError for a name that is not a plain file name."""
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not an instance name", hint="use letters, digits, '.', '_' and '-'"
            )
        return cls(name, folder, runtime_dir / f"{name}.sock")

    @property
    def option(self) -> str:
        """What names this instance in a command line: " --instance foo", nothing for the default."""
        return "" if self.name == "default" else f" --instance {self.name}"

    @property
    def lock_path(self) -> Path:
        return self.folder / "lock"

    @property
    def plan_path(self) -> Path:
        return self.folder / "plan.json"

    @property
    def wishes_path(self) -> Path:
        """The settings the plan was made for."""
        return self.folder / "wishes.json"

    @property
    def state_path(self) -> Path:
        return self.folder / "state.json"

    @property
    def log_path(self) -> Path:
        return self.folder / "logs" / "server.log"

    def create(self) -> None:
        """Make the directories, readable by nobody else."""
        for path in (self.folder, self.log_path.parent, self.socket_path.parent):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, for as long as the machine is up. `start_ticks` is field 22 of /proc/PID/stat."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """The identity of a live process; None when there is none with this pid (or only a zombie)."""
        fields = _stat_fields(pid)
        if fields is None or fields[0] in "ZX":
            return None
        return cls(pid, int(fields[19]), boot_id())

    @classmethod
    def from_dict(cls, body: Any) -> Identity | None:
        try:
            return cls(int(body["pid"]), int(body["start_ticks"]), str(body["boot_id"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    def to_dict(self) -> dict[str, Any]:
        return {"pid": self.pid, "start_ticks": self.start_ticks, "boot_id": self.boot_id}

    def alive(self) -> bool:
        """True while this very process lives; a zombie does not."""
        return Identity.of(self.pid) == self


def _stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state letter on. The command name may hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def session_members(session: int) -> list[int]:
    """Pids of the live processes of one session, zombies left out."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat_fields(int(entry.name))
            if fields is not None and fields[0] not in "ZX" and int(fields[3]) == session:
                found.append(int(entry.name))
    return found


def try_lock(path: Path) -> int | None:
    """Take the instance's lock; returns the descriptor that holds it, or None when somebody else does.

    The lock lives as long as any copy of the descriptor. Its holder removes the file before letting
    go, so a file locked here but no longer at `path` is a lost race: try again.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        with suppress(FileNotFoundError):
            if os.fstat(fd).st_ino == path.stat().st_ino:
                return fd
        os.close(fd)


def is_locked(path: Path) -> bool:
    """True while some process holds the lock. Creates nothing."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def write_atomic(path: Path, text: str) -> None:
    """Replace a file: a reader sees the old text or the new one, never a part. Raises OSError."""
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_record(instance: Instance, record: dict[str, Any]) -> None:
    """Write state.json. Raises OSError (a full disk): the caller goes on without."""
    body = {"schema": SCHEMA, **record}
    text = json.dumps(body, indent=2, ensure_ascii=False) + "\n"
    write_atomic(instance.state_path, text.encode(errors="replace").decode())


def read_record(instance: Instance) -> dict[str, Any] | None:
    """The last record, whole; None when there is none this version can read."""
    try:
        found = json.loads(instance.state_path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    body = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    return body if body.get("schema") == SCHEMA and body.keys() >= _ALWAYS else None


def read_wishes(instance: Instance) -> dict[str, str]:
    """The settings of the last start, by key; empty when there are none this version can read."""
    try:
        found = json.loads(instance.wishes_path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("dict[str, str]", found) if isinstance(found, dict) else {}


def holder(instance: Instance) -> Identity | None:
    """The recorded supervisor, when it lives and the lock is held: true even without its socket.

    A socket can be lost: a logout empties the runtime directory, and cron has none. So can the whole
    folder, removed by hand; then the supervisor is known by its command line.
    """
    if not instance.folder.is_dir():
        return _by_command(instance)
    found = Identity.from_dict((read_record(instance) or {}).get("supervisor"))
    return found if found and is_locked(instance.lock_path) and found.alive() else None


def _by_command(instance: Instance) -> Identity | None:
    """The supervisor that was started for a folder, if it is ours to signal and in our namespace."""
    wanted = (b"--folder", os.fsencode(instance.folder))
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if not entry.name.isdigit() or entry.stat().st_uid != os.getuid():
                continue
            words = (entry / "cmdline").read_bytes().split(b"\0")
            ours = b"glm53ctl.supervisor" in words and wanted in pairwise(words)
            if ours and (entry / "ns/mnt").stat().st_ino == Path("/proc/self/ns/mnt").stat().st_ino:
                return Identity.of(int(entry.name))
    return None


@contextmanager
def short_socket_path(path: Path) -> Generator[str]:
    """A name for a unix socket that fits the kernel's 108 bytes, however deep its directory is."""
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)


def listen_socket(path: Path) -> socket.socket:
    """A listening control socket, private to this user. Only the holder of the lock may call this."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with short_socket_path(path) as name:
        listener.bind(name)
    path.chmod(0o700)
    listener.listen(16)
    return listener
