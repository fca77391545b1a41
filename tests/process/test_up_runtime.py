"""`up --runtime`: native, our container, or the one of the two that is possible. Docker is a stand-in
that runs the image's entry point as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from stage import free_port, wait_until

from glm53ctl.errors import Blocked
from glm53ctl.runtime import Runtime, choose

FAKE_DOCKER = r"""#!{python}
import json, os, pathlib, subprocess, sys
here = pathlib.Path(__file__).parent
words = sys.argv[1:]
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(words) + "\n")
def state():
    file = here / "pid"
    if not file.exists():
        return None
    try:
        return "running" if pathlib.Path(f"/proc/{{file.read_text()}}/stat").read_text().split()[2] != "Z" else "exited"
    except OSError:
        return "exited"
match words[0]:
    case "info":
        print(json.dumps({{"ServerVersion": "28.2.2", "Runtimes": {{}}}}))
    case "image":
        sys.exit(0 if (here / "image").exists() else 1)
    case "inspect":
        if state() is None:
            sys.exit(1)
        print(state())
    case "logs":
        print((here / "log").read_text())
    case "run":
        env = {{"PATH": os.environ["PATH"], "HOME": str(here), "GLM53_ROOT": str(here / "glm53")}}
        env |= dict(item.split("=", 1) for flag, item in zip(words, words[1:]) if flag == "--env")
        serve = [sys.executable, "-m", "glm53ctl.container"]
        broken = ["sh", "-c", "echo the GPU is gone; exit 8"]
        child = subprocess.Popen(broken if (here / "broken").exists() else serve, env=env, start_new_session=True,
                                 stdin=subprocess.DEVNULL, stdout=(here / "log").open("w"), stderr=subprocess.STDOUT)
        (here / "pid").write_text(str(child.pid))
        print("0123456789ab")
"""


class Docker:
    def __init__(self, root: Path) -> None:
        self.folder = root / "bin"
        self.folder.mkdir()
        command = self.folder / "docker"
        command.write_text(FAKE_DOCKER.format(python=sys.executable))
        command.chmod(0o755)
        (self.folder / "image").touch()
        self.environment = {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "HOME": str(root),
            "GLM53_ROOT": str(root / "host"),
        }

    def up(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "glm53ctl", "up", "--engine", "scripted", "--model", "tiny", *arguments],
            env=self.environment, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def calls(self, verb: str) -> list[list[str]]:
        lines = (self.folder / "calls").read_text().splitlines()
        return [words for words in map(json.loads, lines) if words[0] == verb]

    def stop(self) -> None:
        file = self.folder / "pid"
        if file.exists():
            pid = int(file.read_text())
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGTERM)
                wait_until(lambda: not Path(f"/proc/{pid}").exists(), 20)


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[Docker]:
    made = Docker(tmp_path)
    yield made
    made.stop()


def test_a_container_serves_the_same_plan_and_is_found_again(docker: Docker):
    port = str(free_port())
    done = docker.up("--runtime", "docker", "--port", port, "-cs", "4096")
    assert done.returncode == 0, done.stderr
    assert f"ready  http://127.0.0.1:{port}/v1   container glm53" in done.stdout
    assert "asked for" in done.stderr
    [run] = docker.calls("run")
    assert run[run.index("--ulimit") :][:2] == ["--ulimit", "memlock=-1"]
    assert f"127.0.0.1:{port}:{port}" in run
    inside = json.loads((docker.folder / "glm53/state/default/plan.json").read_text())
    assert (inside["engine"], inside["limits"]["cache_tokens"]) == ("scripted", 4096)
    again = docker.up("--runtime", "docker", "--port", port, "-cs", "4096", "-q")
    assert (again.returncode, again.stdout) == (0, f"http://127.0.0.1:{port}/v1\n")
    assert len(docker.calls("run")) == 1
    docker.stop()
    stopped = docker.up("--runtime", "docker", "--port", port)
    assert stopped.returncode == 6
    assert "docker start glm53" in stopped.stderr


def test_a_container_that_ends_is_told_with_its_last_lines(docker: Docker):
    (docker.folder / "broken").touch()
    done = docker.up("--runtime", "docker", "--port", str(free_port()))
    assert done.returncode == 8
    assert "| the GPU is gone" in done.stderr
    assert "the container glm53 is exited, it never served" in done.stderr


def test_docker_without_the_image_says_how_to_build_it(docker: Docker):
    (docker.folder / "image").unlink()
    done = docker.up("--runtime", "docker", "--json")
    body = json.loads(done.stdout)
    assert (done.returncode, body["error"]["id"]) == (4, "RUN-004")
    assert "docker build -f docker/Dockerfile" in body["error"]["hint"]


@pytest.mark.parametrize(
    ("asked", "native", "container", "runtime", "why"),
    [("auto", None, None, "native", "possible here"), ("auto", None, "x", "native", "possible here"),
     ("auto", "no torch", None, "docker", "no torch"), ("native", None, "x", "native", "asked for"),
     ("docker", None, None, "docker", "asked for"), ("docker", "no torch", None, "docker", "asked for")],
)  # fmt: skip
def test_the_choice_keeps_its_reason(asked, native, container, runtime, why):
    place = choose(Runtime(asked), native=native, container=container)
    assert (place.runtime, place.why) == (runtime, why)


@pytest.mark.parametrize("asked", Runtime)
def test_what_speaks_against_both_is_said(asked):
    with pytest.raises(Blocked) as caught:
        choose(asked, native="no torch", container="no docker")
    assert ("no torch" in caught.value.message) is (asked is not Runtime.DOCKER)
    assert ("no docker" in caught.value.message) is (asked is not Runtime.NATIVE)
