"""scripts/setup.sh on a checkout of its own, with a Python that only writes down what it is asked."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = """#!/bin/sh
echo "$*" >> asked
case "$*" in
  *venv.main*) sleep "$SLOW"; mkdir -p .venv/bin; cp "$0" .venv/bin/python; touch .venv/pip ;;
  "-m pip --version") [ -e .venv/pip ] ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".cache/exllamav3/exllamav3-1.5.1.dist-info").mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "scripts/setup.sh", tmp_path / "scripts")
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def start(checkout: Path, *, slow_s: int = 0) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHON": str(checkout / "python"), "SLOW": str(slow_s)}
    return subprocess.Popen(
        ["bash", checkout / "scripts/setup.sh"],
        env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def finish(checkout: Path) -> str:
    process = start(checkout)
    told = process.communicate(timeout=30)[1]
    assert process.returncode == 0, told
    return told


def test_an_environment_without_pip_is_made_again_and_every_step_is_said(checkout: Path):
    broken = checkout / ".venv/bin/python"
    broken.parent.mkdir(parents=True)
    shutil.copy(checkout / "python", broken)
    told = finish(checkout)
    assert "venv.main" in (checkout / "asked").read_text()
    assert [line.split()[1] for line in told.splitlines()] == [
        "creating",
        "installing",
        "installing",
    ]
    assert finish(checkout) == ""  # nothing to do


def test_ctrl_c_says_one_line_and_the_next_run_goes_on(checkout: Path):
    process = start(checkout, slow_s=30)
    while "venv.main" not in (
        (checkout / "asked").read_text() if (checkout / "asked").exists() else ""
    ):
        time.sleep(0.02)
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    told = process.communicate(timeout=10)[1]
    assert process.returncode == 130
    assert told.splitlines()[1:] == ["setup: interrupted; the next run goes on from here"]
    assert "installing" in finish(checkout)
