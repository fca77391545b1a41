"""Which source a result was measured with. A figure without it cannot be repeated."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMIT_FILE = ".commit"


def commit(root: Path = ROOT) -> str | None:
    """The checkout's commit, with "-dirty" when files differ; None for an installed package.

    A tree that was copied somewhere without its .git may hold the answer in a file `.commit`.
    """
    if (root / ".git").exists():
        line = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"]
        try:
            done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() or None
    try:
        return (root / COMMIT_FILE).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
