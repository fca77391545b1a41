"""`up`, `status`, `logs`, `restart`, `down` and `serve` as a user calls them, scripted engine behind."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import httpx
import pytest
from stage import Started, free_port, wait_until

from glm53ctl import cli, client
from glm53ctl.paths import tiny_checkpoint
from glm53ctl.supervisor.lifecycle import Policy
from glm53ctl.supervisor.state import Identity

SCRIPTED = ("--engine", "scripted", "--model", "tiny")


class Shell:
    """The command line with a private root directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = free_port()
        self.folder = root / "state" / "default"
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("GLM53_", "PYTHONUNBUFFERED"))
            },
            "GLM53_ROOT": str(root),
            "HOME": str(root),
            "XDG_CONFIG_HOME": "",
            "XDG_RUNTIME_DIR": "",
        }

    def start(self, *arguments: str) -> Started:
        return Started(
            [sys.executable, "-m", "glm53ctl", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one command line in this process: the same code, without the imports each time."""
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with (
            mock.patch.dict(os.environ, self.environment, clear=True),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            code = cli.run(list(arguments))
        texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
        return subprocess.CompletedProcess(arguments, code, *texts)

    def up(self, *arguments: str, port: int | None = None) -> subprocess.CompletedProcess[str]:
        return self("up", *SCRIPTED, "--port", str(port or self.port), *arguments)

    def record(self) -> dict:
        return json.loads(self("status", "--json").stdout)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    if made.folder.exists():
        made("down", "--force")


def test_a_day_with_the_run_verbs(shell: Shell):
    done = shell.up()
    assert done.returncode == 0, done.stderr
    url = f"http://127.0.0.1:{shell.port}"
    assert f"ready  {url}/v1   model tiny" in done.stdout
    curl = next(line for line in done.stdout.splitlines() if line.startswith("try"))
    answer = subprocess.run(
        ["bash", "-c", curl.removeprefix("try")], capture_output=True, check=True, text=True
    )
    assert "Hello from the scripted engine" in answer.stdout

    again = shell.up()
    assert (again.returncode, "already up with this plan" in again.stdout) == (0, True)
    assert shell.up("--mode", "cpu").returncode == 0  # the same plan, asked for differently

    before = (shell.folder / "state.json").read_bytes()
    other = shell.up(port=free_port())
    assert other.returncode == 6
    assert f"listen.port {shell.port} → " in other.stderr
    assert (shell.folder / "state.json").read_bytes() == before  # T-052

    status = shell("status")
    assert (status.returncode, "● serving" in status.stdout) == (0, True)
    document = shell.record()
    assert (document["phase"], document["stats"]["requests"]) == ("ready", 1)

    assert shell("restart").returncode == 0
    assert shell.record()["child"] != document["child"]
    assert "supervisor: starting -> ready" in shell("logs", "-n", "3").stdout

    moved = shell.up("--replace", port=free_port())
    assert moved.returncode == 0, moved.stderr
    pids = [shell.record()[name]["pid"] for name in ("supervisor", "child")]

    first = shell("down")
    assert re.fullmatch(r"default: stopped after \d\.\d s\n", first.stdout)
    assert first.stderr == "", "an idle server ends within its grace: nothing needs saying"
    second = shell("down")
    assert (second.returncode, "was not running" in second.stdout) == (0, True)
    assert shell("status").returncode == 3
    assert [Identity.of(pid) for pid in pids] == [None, None]
    left = {path.name for path in shell.folder.parent.rglob("*") if not path.is_dir()}
    assert left == {"plan.json", "state.json", "wishes.json", "server.log"}


def test_T056_a_port_in_use_names_its_owner(shell: Shell):
    with socket.create_server(("127.0.0.1", shell.port)):
        done = shell.up()
        assert done.returncode == 6
        assert f"127.0.0.1:{shell.port} is held by pid {os.getpid()}" in done.stderr
        assert "pytest" in done.stderr
    assert not (shell.folder / "lock").exists()


def test_T056_a_wildcard_bind_sees_the_loopback_holder(shell: Shell):
    with socket.create_server(("127.0.0.1", shell.port)):
        done = shell.up("--host", "0.0.0.0")
    assert (done.returncode, f"127.0.0.1:{shell.port} is held by" in done.stderr) == (6, True)


def test_T058_an_address_of_another_machine_is_refused_before_the_start(shell: Shell):
    done = shell.up("--host", "192.0.2.33")
    assert done.returncode == 2
    assert "192.0.2.33 is not an address of this machine" in done.stderr
    assert not (shell.folder / "state.json").exists()


def _truncated(folder: Path) -> str:
    file = folder / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    return "model.safetensors"


def _no_processor(folder: Path) -> str:
    (folder / "processor_config.json").unlink()
    return "processor_config.json"


def _wrong_architecture(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["LlamaForCausalLM"]
    config["model_type"] = "llama"
    (folder / "config.json").write_text(json.dumps(config))
    return "config.json"


def _not_a_checkpoint(folder: Path) -> str:
    for path in folder.iterdir():
        path.unlink()
    (folder / "holiday.jpg").write_bytes(b"x")
    return "config.json"


@pytest.mark.parametrize(
    "damage", [_truncated, _no_processor, _wrong_architecture, _not_a_checkpoint]
)
def test_a_bad_model_is_one_error_naming_the_file(shell: Shell, damage):
    folder = shell.root / "model"
    shutil.copytree(tiny_checkpoint(), folder)
    name = damage(folder)
    done = shell("up", "--mode", "cpu", "--model", str(folder), "--port", str(shell.port))
    assert done.returncode == 7
    errors = [line for line in done.stderr.splitlines() if line.startswith("error[")]
    assert len(errors) == 1
    assert name in errors[0]
    assert not (shell.folder / "lock").exists()
    assert shell("status").returncode == 3


def test_T050_a_record_of_another_boot_is_cleared_and_nobody_is_signalled(shell: Shell):
    assert shell.up().returncode == 0
    record = json.loads((shell.folder / "state.json").read_text())
    shell("down")
    with subprocess.Popen(["sleep", "60"]) as stranger:
        stale = {"pid": stranger.pid, "start_ticks": 5, "boot_id": "an older boot"}
        left = {**record, "phase": "ready", "child": stale, "supervisor": stale}
        (shell.folder / "state.json").write_text(json.dumps(left))
        (shell.folder / "lock").touch()
        status = shell("status")
        assert status.returncode == 3
        assert "the machine was restarted; the stale record is cleared" in status.stdout
        assert "hint     glm53ctl restart starts it with the plan it had" in status.stdout
        assert shell.record()["phase"] == "stopped"
        assert shell("down").returncode == 0
        assert stranger.poll() is None
        assert shell.up().returncode == 0
        assert stranger.poll() is None
        stranger.kill()


def test_a_start_that_ends_early_shows_its_last_lines(shell: Shell):
    assert shell.up().returncode == 0
    shell("down")
    plan = json.loads((shell.folder / "plan.json").read_text())
    plan["script"]["exit_code_at_start"] = 1
    (shell.folder / "plan.json").write_text(json.dumps(plan))
    done = shell("restart")
    assert done.returncode == 8
    assert "error[RUN-008]: exited with code 1" in done.stderr
    assert "  | " in done.stderr
    assert "starting -> failed: exited with code 1" in done.stderr
    assert shell("status").returncode == 3
    assert "last     crash: exited with code 1" in shell("status").stdout


def test_T052_two_ups_at_once_start_one_server(shell: Shell):
    ports = free_port(), free_port()
    both = [shell.start("up", *SCRIPTED, "--port", str(port)) for port in ports]
    ended = []
    for process in both:
        with process:
            _, err = process.communicate(timeout=60)
        ended.append((process.returncode, err))
    assert sorted(code for code, _ in ended) == [0, 6], ended
    assert shell.record()["phase"] == "ready"


def test_a_plan_that_cannot_run_is_refused_before_anything_is_stopped(shell: Shell):
    shell.up()
    before = shell.record()["child"]
    for arguments in (("--mode", "exact"), ("--mode", "exact", "--replace")):
        done = shell("up", "--model", "tiny", *arguments, "--gpu", "0")
        assert (done.returncode, "error[FIT-001]" in done.stderr) == (4, True), done.stderr
    elsewhere = ("--host", "192.0.2.33", "--replace")
    assert "is not an address of this machine" in shell.up(*elsewhere, port=free_port()).stderr
    assert shell.record()["child"] == before


def test_a_lost_control_socket_does_not_make_a_running_server_a_stranger(shell: Shell):
    assert shell.up().returncode == 0
    first = shell.record()
    (shell.folder.parent / "default.sock").unlink()
    again = shell.up()
    assert (again.returncode, again.stderr) == (0, "")
    assert "already up with this plan" in again.stdout
    assert shell("status").returncode == 0
    other = shell.up("--context-tokens", "512")
    assert other.returncode == 6
    assert "running with a different plan" in other.stderr
    restarted = shell("restart")
    assert restarted.returncode == 0
    assert shell.record()["supervisor"] != first["supervisor"]


def test_a_removed_state_folder_is_said_with_the_way_out(shell: Shell):
    assert shell.up().returncode == 0
    shutil.rmtree(shell.folder.parent)
    for command in (("up", *SCRIPTED, "--port", str(shell.port)), ("status",), ("restart",)):
        said = shell(*command)
        assert said.returncode == 6
        assert "is running, but cannot read the plan" in said.stderr
        assert "stop it: glm53ctl down\n" in said.stderr
        assert "start it again: glm53ctl up\n" in said.stderr
    elsewhere = shell("up", *SCRIPTED, "--port", str(shell.port), "--instance", "b")
    assert "of instance 'default'" in elsewhere.stderr
    assert "stop it: glm53ctl down," in elsewhere.stderr
    assert "stopped" in shell("down").stdout
    assert shell.up().returncode == 0


def test_files_lost_beside_a_running_server_are_said_with_the_way_out(shell: Shell):
    assert shell.up().returncode == 0
    shutil.rmtree(shell.folder / "logs")
    for follow in ((), ("--follow",)):
        said = shell("logs", *follow)
        assert "never started" not in said.stderr
        assert f"{shell.folder / 'logs'} was removed" in said.stderr
        assert (said.returncode, "glm53ctl up" in said.stderr) == (7, True)
    plan = (shell.folder / "plan.json").read_text()
    for damaged in ("", plan[:-9], None):
        path = shell.folder / "plan.json"
        path.unlink() if damaged is None else path.write_text(damaged)
        for command in (("up", "--replace", *SCRIPTED, "--port", str(shell.port)), ("status",)):
            said = shell(*command)
            assert said.returncode == 6, said.stderr
            assert "glm53ctl down" in said.stderr
            assert "same command" not in said.stderr
    assert shell("down").returncode == 0
    assert shell.up().returncode == 0


@pytest.mark.parametrize("place", ["", "logs", "state.json", "lock", "../default.sock"])
def test_what_stands_where_a_file_or_folder_of_ours_should_is_named(shell: Shell, place: str):
    path = shell.folder / place
    shell.folder.parent.mkdir(parents=True, exist_ok=True)
    if place in {"", "logs"}:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    else:
        shell.folder.mkdir(parents=True)
        path.mkdir()
    said = shell.up()
    assert (said.returncode, "BUG" in said.stderr) == (1, False), said.stderr
    assert f"cannot use {path.resolve()}" in said.stderr
    assert "move it away" in said.stderr
    for verb in ("status", "logs", "down"):
        assert "BUG" not in shell(verb).stderr


def test_doctor_measures_nothing_beside_a_server_that_generates(shell: Shell):
    assert shell.up().returncode == 0
    only = ("doctor", "--only", "RAM-002", "--json")
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1500, "min_tokens": 1500, "stream": True}
    url = f"http://127.0.0.1:{shell.port}/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=30) as stream:
        lines = stream.iter_lines()  # given up, it would end the stream
        next(lines)
        told = shell(*only)
    assert "'default' is generating: nothing is measured beside it" in told.stderr
    assert json.loads(told.stdout)["checks"][0]["observed"] == "not measured"


def test_down_says_what_it_waits_for(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    shell.up()
    shell("down")
    plan = json.loads((shell.folder / "plan.json").read_text())
    plan["script"] |= {"tokens_per_s": 4, "text": "<think></think>" + "word " * 50}
    (shell.folder / "plan.json").write_text(json.dumps(plan))
    shell("restart")
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    url = f"http://127.0.0.1:{shell.port}/v1/chat/completions"
    monkeypatch.setattr(client, "Policy", lambda: Policy(grace_s=1.0))
    with httpx.stream("POST", url, json=body) as answer:
        lines = answer.iter_lines()  # its end would end the answer
        next(lines)
        done = shell("down", "--drain", "2", "--json")
    assert done.returncode == 0
    told = json.loads(done.stdout)
    assert (told["was_running"], told["took_s"] > 2) == (True, True)
    assert "still stopping: open streams get up to 2 s to end" in done.stderr
    assert "glm53ctl down --force" in done.stderr


def test_two_instances_do_not_know_each_other(shell: Shell):
    assert shell.up("--quiet").stderr == ""
    second = shell.up("--instance", "two", "--quiet", port=free_port())
    assert second.stdout.endswith("/v1\n")
    assert second.returncode == 0
    assert shell("down", "--instance", "two").returncode == 0
    assert shell("status", "--instance", "two").returncode == 3
    assert shell("status").returncode == 0


def test_attached_up_stops_on_ctrl_c(shell: Shell):
    with shell.start("up", *SCRIPTED, "--port", str(shell.port), "--attach") as process:
        wait_until(lambda: (shell.folder / "lock").exists())
        wait_until(lambda: _serves(shell.port))
        assert process.stdout is not None
        told = process.stdout.readline()  # the server answers a moment before `up` says so
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert "ready" in told
    assert shell("status").returncode == 3


def _serves(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
    except httpx.HTTPError:
        return False


def test_serve_runs_in_the_foreground_and_ends_on_sigterm(shell: Shell):
    with shell.start("serve", *SCRIPTED, "--port", str(shell.port)) as process:
        wait_until(lambda: _serves(shell.port))
        assert not shell.folder.exists()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert f"ready http://127.0.0.1:{shell.port}/v1" in err
