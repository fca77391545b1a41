"""The image's entry point as a process: its environment, its start, its health check, its end."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stage import free_port, wait_until

DOCKERFILE = (Path(__file__).resolve().parents[2] / "docker/Dockerfile").read_text("utf-8")


def image_environment(root: Path) -> dict[str, str]:
    """The final stage's ENV, its absolute folders below `root`; the PATH is this machine's."""
    final = DOCKERFILE.rpartition("\nFROM ")[2].replace("\\\n", " ")
    words = [
        word for line in re.findall(r"^ENV (.*)$", final, re.MULTILINE) for word in line.split()
    ]
    found = dict(word.split("=", 1) for word in words)
    places = {name: str(root) + value for name, value in found.items() if value.startswith("/")}
    return {**found, **places, "PATH": os.environ["PATH"]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("models", "glm53"):
        (tmp_path / name).mkdir()
    return tmp_path


def start(root: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    [entry] = re.findall(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)
    assert json.loads(entry)[0] == "python3"
    return subprocess.Popen(
        [sys.executable, *json.loads(entry)[1:], *arguments],
        env={**image_environment(root), **variables}, cwd=root / "glm53", stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def healthy(port: int) -> bool:
    """The Dockerfile's own health check, in a shell as Docker runs it."""
    [command] = re.findall(r"^  CMD (.*)$", DOCKERFILE, re.MULTILINE)
    done = subprocess.run(
        ["/bin/sh", "-c", command], env={"PATH": os.environ["PATH"], "GLM53_PORT": str(port)},
        capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode == 0


def test_the_container_serves_is_healthy_and_ends_calmly(root: Path):
    port = free_port()
    options = shlex.split("--engine scripted -cs 4096 -cs 8192")
    with start(root, *options, GLM53_MODEL="tiny", GLM53_PORT=str(port), GLM53_MODE="") as server:
        assert not healthy(port)
        wait_until(lambda: healthy(port) or server.poll() is not None)
        assert server.poll() is None, server.communicate()
        plan = json.loads((root / "glm53/state/default/plan.json").read_text())
        assert plan["listen"]["host"] == "0.0.0.0"
        assert plan["limits"]["cache_tokens"] == 8192
        key = root / "glm53/state/default/api-key"
        assert key.stat().st_mode & 0o077 == 0
        assert server.stdout is not None
        told = server.stdout.readline()
        server.send_signal(signal.SIGTERM)
        out, err = server.communicate(timeout=30)
    assert server.returncode == 0, err
    assert f"http://127.0.0.1:{port}/v1" in told
    assert key.read_text().strip() not in told + out + err
    assert not healthy(port)


def test_a_verb_runs_in_place_of_the_server(root: Path):
    with start(root, "doctor", "--quick", "--json", GLM53_MODEL="tiny") as verb:
        out, err = verb.communicate(timeout=60)
    assert json.loads(out)["schema"] == "glm53ctl.doctor/1", err


@pytest.mark.parametrize("after_s", [0.0, 0.2, 0.5, 1.0])
def test_a_stop_while_it_starts_is_as_calm_as_later(root: Path, after_s: float):
    port = free_port()
    with start(
        root, "--engine", "scripted", GLM53_MODEL="tiny", GLM53_PORT=str(port), GLM53_MODE=""
    ) as server:
        wait_until(lambda: (root / "glm53/state").exists() or server.poll() is not None)
        time.sleep(after_s)
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=40)
    assert server.returncode == 0, err
    assert not healthy(port)
    instance = root / "glm53/state/default"
    held = instance / "lock"
    if held.exists():
        with held.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no supervisor is left
