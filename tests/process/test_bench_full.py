"""The long bench, `bench all`, at small scale; what it leaves when it is stopped; the bench of a GPU server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from test_bench_verb import LONG, serving

from glm53ctl.bench import result as results
from glm53ctl.bench import run as running
from glm53ctl.paths import tiny_checkpoint
from glm53ctl.plan import EngineName, ScriptPlan

ROOT = Path(__file__).resolve().parents[2]


def test_bench_all_measures_every_part(tmp_path):
    """A scripted server is quick and its text is short: the same sizes as on a real one, in seconds."""
    script = ScriptPlan(text=LONG, tokens_per_s=4000.0)
    out, page, plots = tmp_path / "r.json", tmp_path / "r.html", tmp_path / "plots"
    with serving(tmp_path, EngineName.SCRIPTED, tiny_checkpoint(), script) as served:
        done = served("all", "--out", out, "--html", page, "--png", plots)
    assert done.returncode == 0, done.stdout + done.stderr
    result = results.read(out)
    full = running.FULL_CPU
    assert result.sweep is not None
    assert result.sweep["status"] == "DONE"
    assert set(result.sweep["decode"]) == {"C1", "C2", "C3", "C4", "C1@8k"}
    assert set(result.sweep["prefill"]) == {str(tokens) for tokens in full.prefill}
    assert {name: one["n"] for name, one in result.sweep["ttft_s"].items()} == {"512": 3, "2048": 3}
    too_long = (result.sweep["prefill"]["8192"], result.sweep["decode"]["C1@8k"])
    assert ["context of 4096" in one["skipped"] for one in too_long] == [True, True]
    assert result.measured["ram_read_bytes_per_s"] > 1e8
    assert result.stream is not None
    assert result.stream["pass"]
    assert [one["phase"] for one in result.phases] == ["stream", "sweep"]
    assert page.read_text().count("<svg") >= 3
    drawn = {path.name for path in plots.iterdir()}
    assert {"throughput.png", "throughput-dark.png", "first-token.png", "delivery.png"} <= drawn


def test_a_bench_that_is_stopped_leaves_no_script_behind(tmp_path):
    script = ScriptPlan(text=LONG, tokens_per_s=20.0)
    with serving(tmp_path, EngineName.SCRIPTED, tiny_checkpoint(), script) as served:
        line = [sys.executable, "-m", "glm53ctl", "bench", "--url", served.url, "--no-measure"]
        bench = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found, until = [], time.monotonic() + 30
        while not found and time.monotonic() < until:
            found = [one for one in psutil.Process(bench.pid).children() if is_script(one)]
            time.sleep(0.02)
        assert found
        bench.send_signal(signal.SIGTERM)
        assert bench.wait(10) == 128 + signal.SIGTERM
        assert not psutil.wait_procs(found, timeout=5)[1]


def is_script(process: psutil.Process) -> bool:
    """Whether it is the stream's script; the bench starts probes before it."""
    with suppress(psutil.Error):
        return "stream_rate.py" in " ".join(process.cmdline())
    return False


@pytest.mark.parametrize(("mode", "code"), [("scripted", 0), ("exact", 1)])
def test_the_bench_of_a_gpu_server_starts_and_stops_its_own(tmp_path, mode, code):
    """The scripted engine stands in for a GPU; without one the server's own words are kept."""
    line = [sys.executable, str(ROOT / "bench" / "gpu_server.py"), "--mode", mode, "--no-measure",
            "--prefill", "64", "--streams", "1", "--tokens", "16", "--reps", "1", "--stream-s", "1",
            "--out", str(tmp_path)]  # fmt: skip
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    if code:
        assert "the server ended with 6" in done.stderr
        assert "error[" in (tmp_path / "server-exact.log").read_text()
        return
    (path,) = tmp_path.glob("*-server-scripted.json")
    assert results.read(path).command.endswith(f"--out {tmp_path}")
    stats = json.loads((tmp_path / "stats-scripted.json").read_text())
    assert stats["exit_code"] == 0
    assert stats["after"]["completion_tokens"] > stats["before"]["completion_tokens"]
    assert stats["memory_bytes"]["VmHWM"] > 1 << 20
