"""One supervised instance with the scripted engine: start, ask, stop; kills of either process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest
from stage import FAST, Stage, wait_until

from glm53ctl import client
from glm53ctl.errors import Glm53Error
from glm53ctl.paths import tiny_checkpoint
from glm53ctl.plan import EngineName, GpuPlan
from glm53ctl.supervisor import logs, owned
from glm53ctl.supervisor.state import Identity, Instance, holder, session_members

FAST_LOAD = replace(FAST, start_stall_s=60.0)  # importing torch is no progress


def test_up_serves_and_down_is_calm_twice(stage: Stage):
    record = stage.up()
    assert record["phase"] == "ready"
    assert httpx.get(record["url"] + "/health").status_code == 200
    pids = stage.pids()
    assert client.stop(stage.instance, None) is True
    assert client.stop(stage.instance, None) is False
    stage.assert_nothing_left(*pids)
    assert client.current(stage.instance)[0]["exit_code"] == 0


def test_killed_child_is_restarted_and_the_reason_is_told(stage: Stage):
    stage.up()
    supervisor, child = stage.pids()
    os.kill(child, signal.SIGKILL)
    record = stage.wait_for("ready", restarts=1)
    assert record["supervisor"]["pid"] == supervisor
    assert record["child"]["pid"] != child
    assert record["last_failure"]["summary"] == "killed by SIGKILL, cause not proven"
    assert "killed by SIGKILL, cause not proven; restart in 0.1 s" in stage.log()


def test_T076_killed_supervisor_leaves_no_orphan(stage: Stage):
    stage.up()
    supervisor, child = stage.pids()
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: Identity.of(child) is None, 5)
    assert session_members(child) == []
    record, running = client.current(stage.instance)
    assert (running, record["phase"]) == (False, "stopped")
    assert "its supervisor was killed" in record["last_failure"]["summary"]
    assert stage.up()["phase"] == "ready"


def test_T076b_terminated_supervisor_takes_its_child_along(stage: Stage):
    stage.up()
    pids = stage.pids()
    os.kill(pids[0], signal.SIGTERM)
    stage.assert_nothing_left(*pids)


@pytest.mark.parametrize("force", [False, True])
def test_an_instance_whose_socket_is_lost_is_still_stopped(stage: Stage, force: bool):
    stage.up()
    pids = stage.pids()
    stage.instance.socket_path.unlink()
    record, running = client.current(stage.instance)
    assert (running, record["phase"]) == (True, "ready")
    assert client.stop(stage.instance, None, force=force)
    stage.assert_nothing_left(*pids)


def test_an_instance_whose_folder_was_removed_is_found_and_stopped(stage: Stage):
    stage.up()
    pids = stage.pids()
    other = Instance.locate("t", folder=stage.instance.folder.parent / "u", runtime_dir=Path("/x"))
    shutil.rmtree(stage.instance.folder)
    stage.instance.socket_path.unlink()
    assert client.is_running(stage.instance)
    assert client.current(stage.instance) == (None, True)
    assert holder(other) is None
    assert client.stop(stage.instance, None)
    stage.assert_nothing_left(*pids)


def test_crash_loop_opens_the_breaker(stage: Stage):
    stage.up(replace(FAST, breaker_crashes=3))
    for restarts in range(3):
        record = stage.wait_for("ready", restarts=restarts)
        os.kill(record["child"]["pid"], signal.SIGSEGV)
    record = stage.wait_for("failed")
    assert record["exit_code"] == 9
    assert "3 crashes in a row" in record["last_failure"]["summary"]
    assert "SIGSEGV" in record["last_failure"]["summary"]


def test_permanent_exit_stops_at_once(stage: Stage):
    record = stage.up(exit_code_at_start=65)
    assert (record["phase"], record["exit_code"]) == ("failed", 7)
    assert record["restarts"] == 0


def test_a_checkpoint_damaged_after_planning_is_named_by_the_server(stage: Stage):
    folder = stage.instance.folder.parent / "model"
    shutil.copytree(tiny_checkpoint(), folder)
    os.truncate(folder / "model.safetensors", 100_000)
    plan = stage.plan()
    model = replace(plan.model, path=str(folder))
    client.launch(stage.instance, replace(plan, engine=EngineName.CPU, model=model), FAST_LOAD)
    record = stage.settle()
    assert (record["phase"], record["exit_code"]) == ("failed", 7)
    assert "model.safetensors" in record["last_failure"]["summary"]
    assert record["last_failure"]["error_id"].startswith("ART-")
    assert stage.log().count("error[ART-") == 1


def test_exit_during_the_first_start_is_final(stage: Stage):
    record = stage.up(exit_code_at_start=1)
    assert (record["phase"], record["exit_code"]) == ("failed", 8)


def test_T054_a_slow_start_is_waited_for_and_answers_503_meanwhile(stage: Stage):
    client.launch(stage.instance, stage.plan(start_delay_s=1.5), FAST)
    url = stage.plan().url
    answer = wait_until(lambda: _answer(f"{url}/health"))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"]["code"] == "loading"
    assert httpx.post(f"{url}/v1/chat/completions", json={"messages": []}).status_code == 503
    assert stage.settle()["phase"] == "ready"
    assert httpx.get(f"{url}/health").status_code == 200


def _answer(url: str) -> httpx.Response | None:
    try:
        return httpx.get(url)
    except httpx.HTTPError:
        return None


def test_T055_start_without_progress_times_out(stage: Stage):
    record = stage.up(replace(FAST, start_stall_s=1.5), start_delay_s=30.0)
    assert record["exit_code"] == 8
    assert "no progress for 2 s at script 0/1" in record["last_failure"]["summary"]


def test_T063_deaf_server_is_killed_after_the_grace(stage: Stage):
    stage.up(ignore_sigterm=True)
    pids = stage.pids()
    client.stop(stage.instance, 0.2)
    stage.assert_nothing_left(*pids)


def test_T061_hung_engine_is_restarted(stage: Stage):
    url = stage.up(hang_after_tokens=3)["url"]
    body = {"model": "tiny", "prompt": "a", "max_tokens": 50}
    with httpx.Client(timeout=30) as http, suppress(httpx.HTTPError):
        http.post(f"{url}/v1/completions", json=body)
    record = stage.wait_for("ready", restarts=1)
    assert record["last_failure"]["kind"] == "stalled"
    assert "1 running, 0 queued, but no step" in record["last_failure"]["summary"]


def test_T067_a_server_without_vram_on_its_gpu_is_stopped(stage: Stage, monkeypatch):
    gpu = GpuPlan("GPU-52a3", "NVIDIA GeForce RTX 3090", 0, 0, 0)
    idle = {"uuid": gpu.uuid, "processes": [], "memory": {"used": 4 << 20}}
    machine = stage.instance.folder.parent / "machine"
    machine.mkdir()
    (machine / "nvml.json").write_text(json.dumps({"gpus": [idle]}))
    monkeypatch.setenv("GLM53_FAKE_ROOT", str(machine))
    client.launch(stage.instance, replace(stage.plan(), gpu=gpu), FAST)
    record = stage.settle()
    assert (record["phase"], record["exit_code"]) == ("failed", 8)
    words = "nobody holds VRAM on GPU-52a3 (4 MiB used)"
    assert (record["last_failure"]["kind"], record["last_failure"]["summary"]) == (
        "wrong GPU",
        words,
    )


def test_T024_a_server_that_landed_on_another_card_is_stopped(stage: Stage, monkeypatch):
    asked = GpuPlan("GPU-A", "NVIDIA GeForce RTX 3090", 0, 0, 0)
    machine = stage.instance.folder.parent / "machine"
    machine.mkdir()
    monkeypatch.setenv("GLM53_FAKE_ROOT", str(machine))
    (machine / "nvml.json").write_text("{}")
    plan = stage.plan(start_delay_s=2.0)
    client.launch(stage.instance, replace(plan, gpu=asked), FAST)
    wait_until(lambda: stage.record()["child"])
    pids = stage.pids()
    cards = [
        {"uuid": "GPU-A", "processes": [], "memory": {"used": 4 << 20}},
        {"uuid": "GPU-B", "processes": [{"pid": pids[1]}], "memory": {"used": 20 << 30}},
    ]
    (machine / "nvml.json").write_text(json.dumps({"gpus": cards}))
    record = stage.settle()
    assert (record["phase"], record["exit_code"]) == ("failed", 8)
    assert record["last_failure"]["summary"] == "VRAM is held on GPU-B, not on GPU-A"
    stage.assert_nothing_left(*pids)


def worker_of(folder: Path) -> subprocess.Popen[bytes]:
    """What a server may start: a process in a session of its own."""
    environment = {**os.environ, **owned.mark(folder)}
    return subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True)


def test_T074_a_worker_that_left_the_session_ends_with_its_server(stage: Stage):
    stage.up()
    pids = stage.pids()
    assert {item.pid for item in owned.strays(stage.instance.folder)} == {pids[1]}
    with worker_of(stage.instance.folder) as ours, worker_of(Path("/other")) as stranger:
        os.kill(pids[1], signal.SIGKILL)
        assert ours.wait(10) == -signal.SIGKILL
        stage.wait_for("ready", restarts=1)
        with worker_of(stage.instance.folder) as second:
            client.stop(stage.instance, 0.0)
            assert second.wait(10) == -signal.SIGKILL
        assert stranger.poll() is None
        stranger.kill()


def test_T074_what_does_not_end_is_named_by_down(stage: Stage, monkeypatch):
    stage.up()
    with worker_of(stage.instance.folder) as stuck:
        seen = Identity.of(stuck.pid)
        monkeypatch.setattr(owned, "end_strays", lambda *_, **__: [seen])
        with pytest.raises(Glm53Error) as error:
            client.stop(stage.instance, 0.0)
        assert error.value.exit_code == 1
        assert f"pid {stuck.pid} of its server has not" in error.value.message
        monkeypatch.undo()
        stuck.kill()


def test_T073_an_open_stream_does_not_block_the_end_and_gets_its_last_event(stage: Stage):
    url = stage.up(tokens_per_s=5.0)["url"]
    pids = stage.pids()
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1000, "stream": True, "min_tokens": 1000}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as stream:
        lines = stream.iter_lines()
        next(lines)
        start = time.monotonic()
        client.request(stage.instance, {"verb": "stop", "drain_s": 0.5})
        events = [line for line in lines if line]
        took_s = time.monotonic() - start
    assert took_s < 0.5 + FAST.grace_s + 1.5
    assert "shutting_down" in events[-1] or events[-1] == "data: [DONE]"
    stage.assert_nothing_left(*pids)


def test_T079b_restarts_leave_no_zombies_and_the_log_is_reopened_after_rotation(stage: Stage):
    stage.up()
    supervisor, first = stage.pids()
    with stage.instance.log_path.open("a") as log:
        log.truncate(logs.MAX_BYTES + 1)
    rotated = stage.instance.log_path.with_name("server.log.1")
    wait_until(rotated.exists)
    wait_until(lambda: Path(f"/proc/{first}/fd/1").readlink() == stage.instance.log_path)
    for number in range(3):
        client.request(stage.instance, {"verb": "restart", "drain_s": 0.0})
        wait_until(lambda old=first: _child_of(stage) not in {None, old})
        first = stage.wait_for("ready")["child"]["pid"]
        assert [child.status() for child in psutil.Process(supervisor).children()] in (
            [psutil.STATUS_SLEEPING],
            [psutil.STATUS_RUNNING],
        ), number


def _child_of(stage: Stage) -> int | None:
    child = stage.record()["child"]
    return child["pid"] if child else None
