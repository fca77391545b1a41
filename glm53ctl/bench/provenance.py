"""Which source a result was measured with. A figure without it cannot be repeated."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMIT_FILE = ".commit"
_COMMIT_CHARS = 64


def commit(root: Path = ROOT) -> str | None:
    """The checkout's commit, with "-dirty" when files differ; None for an installed package.

    A file `.commit` counts first: whoever copies a tree to another machine writes it there, where .git
    is missing or that of an older copy. git ignores it, so that none travels by accident.
    """
    return _from_file(root / COMMIT_FILE) or _from_git(root)


def _from_file(path: Path) -> str | None:
    """The first line, when it is a commit as git writes it: nothing else goes into a result."""
    try:
        with path.open("rb") as file:
            line = file.read(_COMMIT_CHARS + 2).partition(b"\n")[0]
    except OSError:
        return None
    name = line.decode("ascii", errors="replace").strip()
    return name if re.fullmatch(rf"[0-9a-z-]{{1,{_COMMIT_CHARS}}}", name) else None


def _from_git(root: Path) -> str | None:
    if not (root / ".git").exists():
        return None  # and not that of a folder above, which is another project's
    line = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
