"""Every block marked runnable in README and docs runs as it stands, in a home of its own.

`<!-- runnable -->` in the line before a block marks it. A page's blocks run in order as one script; the
port is another and the engine is the scripted one, so that a page takes seconds. In a console block the
lines with a prompt run; its other lines show what comes. Any other block of commands says why it is not
run: `<!-- not run: REASON -->`. The pages that `make docs` writes are checked against the code instead.
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
ANY_BLOCK = re.compile(r"(?:^(<!--.*?-->)\n)?^```(?:sh|console|bash)\n", re.MULTILINE)
NOT_RUN = re.compile(r"<!-- not run: (.{8,}) -->")
GENERATED = {"cli.md", "settings.md", "exit-codes.md"}
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in DOCUMENTS if "<!-- runnable -->\n```" in page.read_text(encoding="utf-8")]


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
    for name in ("bench", "scripts", "reference"):
        if not (home / name).exists():
            (home / name).symlink_to(ROOT / name)
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


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_every_block_of_commands_runs_or_says_why_not(page):
    markers = ANY_BLOCK.findall(page.read_text(encoding="utf-8"))
    if page.name in GENERATED:
        return
    reasons = {marker: NOT_RUN.fullmatch(marker) for marker in markers}
    silent = [m for m, reason in reasons.items() if m != "<!-- runnable -->" and reason is None]
    assert silent == []
    for reason in filter(None, reasons.values()):
        for name in re.findall(r"tests/\S+\.py", reason[1]):
            assert (ROOT / name).is_file(), name


def test_the_readme_and_other_pages_have_blocks_to_run():
    assert PAGES[0].name == "README.md"
    assert len(PAGES) >= 9


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
    assert re.search(r"^default: stopped after \d+\.\d s$", done.stdout, re.MULTILINE)


def test_a_block_that_fails_is_noticed(tmp_path):
    page = "<!-- runnable -->\n```console\n$ glm53ctl config set no.such.key 1\nfine\n```\n"
    done = run(page, tmp_path)
    assert done.returncode == 2
    assert "no.such.key" in done.stderr


def test_the_two_commands_of_the_readme_are_targets():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    up = r"^up: .*glm53ctl up --mode auto --model \$\(MODEL\)(  ##.*)?$"
    assert re.search(up, makefile, re.MULTILINE)
    assert re.search(r"^test: .*pytest(  ##.*)?$", makefile, re.MULTILINE)
