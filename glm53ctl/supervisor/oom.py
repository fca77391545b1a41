"""The OOM killer: its count of kills in our cgroup is proof, and the supervisor asks to be spared."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_SPARED = -900


@dataclass(frozen=True, slots=True)
class OomCount:
    """`kills` since the cgroup was made, whichever ancestor's limit was hit; `source` is the file."""

    kills: int
    source: str


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
