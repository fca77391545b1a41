"""The OOM killer: its count of kills in our cgroup is proof, and the supervisor asks to be spared."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_SPARED = -900
_LOOKS = 10
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
_KMSG_RECORD_BYTES = 8192


@dataclass(frozen=True, slots=True)
class OomCount:
    """`kills` since the cgroup was made, whichever ancestor's limit was hit; `source` is the file."""

    kills: int
    source: str


class OomWitness:
    """Was a killed child the OOM killer's victim?

    The kernel log names its victims by pid, but is often closed to us and means nothing in a pid
    namespace of our own. Then the cgroup's counter has to do: it counts neighbours as well, so only
    kills of the last few looks are held against one death.
    """

    def __init__(self) -> None:
        self._recent: deque[OomCount | None] = deque(maxlen=_LOOKS)
        self.look()

    def look(self) -> None:
        """Remember the counter; call it now and then."""
        self._recent.append(count_oom_kills())

    def kills_of(self, pid: int) -> OomCount | None:
        """OOM kills that may be `pid`'s, which has just died; None when nobody can tell."""
        named = named_in_kernel_log(pid)
        if named is not None:
            return OomCount(int(named), "kernel log")
        now, before = count_oom_kills(), self._recent[0]
        if now is None or before is None:
            return None
        return OomCount(now.kills - before.kills, now.source)


def named_in_kernel_log(pid: int) -> bool | None:
    """Whether the kernel log says that this pid was an OOM victim; None when it cannot say."""
    try:
        if Path("/proc/self/ns/pid").stat().st_ino != _FIRST_PID_NAMESPACE:
            return None
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return any(f"Killed process {pid} (".encode() in record for record in _records(fd))
    except OSError:
        return None
    finally:
        os.close(fd)


def _records(kmsg_fd: int) -> Iterator[bytes]:
    """The kernel log, record by record. Raises OSError when it may not be read."""
    while True:
        try:
            yield os.read(kmsg_fd, _KMSG_RECORD_BYTES)
        except BlockingIOError:
            return  # the end
        except BrokenPipeError:
            continue  # records were overwritten while we read; the next read goes on after them


def prefer_to_survive() -> int:
    """Ask the kernel to spare this process when memory runs out; returns the value it had before.

    Lowering needs a privilege; without it nothing changes, and a small process is rarely chosen anyway.
    """
    path = Path("/proc/self/oom_score_adj")
    before = int(path.read_text(encoding="ascii"))
    with suppress(OSError):
        path.write_text(str(min(before, _SPARED)), encoding="ascii")
    return before


def set_score(pid: int, score: int) -> None:
    """Set another process's standing with the OOM killer: a child must not inherit its parent's."""
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(score), encoding="ascii")


def count_oom_kills(root: Path = Path("/")) -> OomCount | None:
    """Read the counter of this process's cgroup, v2 before v1; None where there is none."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for folder, name in _candidates(root, lines):
        try:
            text = (folder / name).read_text(encoding="ascii")
        except (OSError, ValueError):
            continue
        for line in text.splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill" and value.isdigit():
                return OomCount(int(value), name)
    return None


def _candidates(root: Path, lines: list[str]) -> list[tuple[Path, str]]:
    """Where the counter may be. A container may see its own cgroup as the mount's root."""
    unified: list[tuple[Path, str]] = []
    legacy: list[tuple[Path, str]] = []
    mount = root / "sys/fs/cgroup"
    for line in lines:
        number, controllers, path = line.split(":", 2)
        inside = path.lstrip("/")
        if number == "0" and not controllers:
            for base in (mount, mount / "unified"):
                unified += [(base / inside, "memory.events"), (base, "memory.events")]
        elif "memory" in controllers.split(","):
            base = mount / "memory"
            legacy += [(base / inside, "memory.oom_control"), (base, "memory.oom_control")]
    return unified + legacy
