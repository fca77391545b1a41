"""The commands of docs/benchmarks.md name flags and files that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
LINES = [
    line
    for block in re.findall(
        r"```(?:console|sh)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith(("glm53ctl bench", "python3 bench/"))
]
SUBCOMMANDS = {"ab", "all", "report", "panel", "sweep", "stream", "kl", "record-panel"}


def test_the_page_has_commands():
    assert len(LINES) > 10


@pytest.mark.parametrize("line", LINES)
def test_every_flag_of_a_command_exists(line):
    words = shlex.split(line)
    if words[0] == "glm53ctl":
        verb = [word for word in words[2:3] if word in SUBCOMMANDS]
        base = [sys.executable, "-m", "glm53ctl", "bench", *verb]
    else:
        base = [sys.executable, str(ROOT / words[1])]
        assert (ROOT / words[1]).is_file()
    shown = subprocess.run(
        [*base, "--help"],
        cwd=ROOT, capture_output=True, text=True, check=True, env={"COLUMNS": "200", "HOME": "/"},
    )  # fmt: skip
    for word in words:
        if word.startswith("--"):
            assert re.search(rf"(?<![\w-]){word}(?![\w-])", shown.stdout), word
        if word.startswith("reference/"):
            assert (ROOT / word).exists()
