"""Every block marked runnable in README and docs runs as it stands, in a home of its own.

`<!-- runnable -->` in the line before a block marks it. A page's blocks run in order as one script; the
port is another and the engine is the scripted one, so that a page takes seconds. In a console block the
lines with a prompt run; its other lines show what comes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from stage import free_port

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^<!-- runnable -->\n```(sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "<!-- runnable -->\n```" in page.read_text(encoding="utf-8")
]


def script_of(text: str, port: int) -> str:
    """A page's runnable blocks as one bash script."""
    lines = ["set -euo pipefail"]
    for kind, block in BLOCK.findall(text):
        for line in block.splitlines():
            if kind == "sh":
                lines.append(line)
            elif line.startswith("$ "):
                lines.append(line.removeprefix("$ "))
    return "\n".join(lines).replace("127.0.0.1:8080", f"127.0.0.1:{port}") + "\n"


def run(text: str, home: Path) -> subprocess.CompletedProcess[str]:
    port = free_port()
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("GLM53_", "XDG_"))
    }
    environment = {
        **kept,
        "HOME": str(home),
        "GLM53_ROOT": str(home / "root"),
        "GLM53_PORT": str(port),
        "GLM53_ENGINE": "scripted",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    try:
        return subprocess.run(
            ["bash", "-c", script_of(text, port)],
            cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    finally:
        stop = [sys.executable, "-m", "glm53ctl", "down", "--force"]
        subprocess.run(stop, cwd=home, env=environment, capture_output=True, check=False)


def test_the_readme_and_other_pages_have_blocks_to_run():
    assert PAGES[0].name == "README.md"
    assert len(PAGES) >= 3


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_every_runnable_block_runs(page, tmp_path):
    done = run(page.read_text(encoding="utf-8"), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_runs_and_shows_what_comes(tmp_path):
    """The first look: ready with a URL, a completion, stopped."""
    done = run(PAGES[0].read_text(encoding="utf-8"), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^ready  http://127\.0\.0\.1:\d+/v1   model tiny$", done.stdout, re.MULTILINE)
    assert '"object":"chat.completion"' in done.stdout
    assert "default: stopped" in done.stdout


def test_a_block_that_fails_is_noticed(tmp_path):
    page = "<!-- runnable -->\n```console\n$ glm53ctl config set no.such.key 1\nfine\n```\n"
    done = run(page, tmp_path)
    assert done.returncode == 2
    assert "no.such.key" in done.stderr


def test_the_two_commands_of_the_readme_are_targets():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^up: .*glm53ctl up --mode auto --model \$\(MODEL\)$", makefile, re.MULTILINE)
    assert re.search(r"^test: .*pytest$", makefile, re.MULTILINE)
