"""`glm53ctl bench` against real servers: a right one, a damaged checkpoint, and one that delivers in bursts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stage import FAST, free_port

from glm53ctl import client
from glm53ctl.checkpoint import open_checkpoint
from glm53ctl.paths import tiny_checkpoint
from glm53ctl.plan import CpuPlan, EngineName, ListenPlan, Mode, ModelPlan, Plan, ScriptPlan
from glm53ctl.supervisor.lifecycle import Policy
from glm53ctl.supervisor.state import Instance

DAMAGED = "model.language_model.layers.2.self_attn.o_proj.trellis"
LONG = "<think></think>" + "The keeper lit the lamp and read the map again. " * 40


class Served:
    """A running default instance below a private root, and the command line that finds it."""

    def __init__(self, root: Path, plan: Plan) -> None:
        self.url = plan.url
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GLM53_")},
            "GLM53_ROOT": str(root),
            "HOME": str(root),
            "XDG_CONFIG_HOME": "",
            "XDG_RUNTIME_DIR": "",
        }

    def __call__(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "glm53ctl", "bench", *map(str, arguments)]
        return subprocess.run(
            line, env=self._environment, capture_output=True, text=True, check=False
        )


@contextmanager
def serving(
    root: Path, engine: EngineName, model: Path, script: ScriptPlan | None = None
) -> Iterator[Served]:
    instance = Instance.locate(
        "default", folder=root / "state" / "default", runtime_dir=root / "state"
    )
    plan = Plan(
        mode=Mode.CPU,
        engine=engine,
        model=ModelPlan(str(model), "tiny", 4096),
        listen=ListenPlan(port=free_port()),
        cpu=CpuPlan(2, (0, 1)),
        script=script,
        child_env=(("CUDA_VISIBLE_DEVICES", ""), ("OMP_NUM_THREADS", "2")),
    )  # fmt: skip
    policy = FAST if engine is EngineName.SCRIPTED else Policy()
    assert client.launch(instance, plan, policy)
    try:
        phases = []
        for record in client.watch(instance):
            phases.append(record["phase"])
            if record["phase"] == "ready":
                break
        assert phases[-1] == "ready", instance.log_path.read_text()
        yield Served(root, plan)
    finally:
        client.stop(instance, 0.0, force=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("tiny")
    with serving(root, EngineName.CPU, tiny_checkpoint()) as served:
        yield served


def test_the_cpu_engine_meets_the_panel_of_the_stock_gpu_engine(tiny, tmp_path, capsys):
    """Issue 2: mean KL over the reference's top 20 <= 1e-4 and top-1 >= 0.99, through HTTP."""
    out = tmp_path / "scores.json"
    done = tiny("panel", "--out", out)
    assert done.returncode == 0, done.stderr
    scores = json.loads(out.read_text())
    with capsys.disabled():
        sys.stdout.write(f" KL {scores['mean_kl_top20']:.3g}, top-1 {scores['top1_agreement']} ")
    assert scores["positions"] >= 400
    assert scores["mean_kl_top20"] <= 1e-4
    assert scores["top1_agreement"] >= 0.99


def test_bench_gives_a_verdict_keeps_the_result_and_compares(tiny, tmp_path):
    out, page = tmp_path / "r.json", tmp_path / "r.html"
    done = tiny("--quick", "--no-measure", "--out", out, "--html", page)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    # On a machine that other programs use, a slow figure is called tainted, and says by what.
    assert result["verdict"]["name"] == "ok" or (
        result["verdict"]["name"] == "tainted" and "other programs" in result["taints"][-1]
    )
    assert f"verdict  {result['verdict']['name']}: quality as expected" in done.stdout
    assert result["schema"] == "glm53ctl.bench/1"
    assert set(result["sweep"]["decode"]) == {"C1", "C2"}
    assert page.read_text().count("<svg") >= 4

    doctored = tmp_path / "other.json"
    doctored.write_text(json.dumps({**result, "version": "0.0.1"}))
    refused = tiny("--quick", "--no-measure", "--compare", doctored)
    assert refused.returncode == 2
    assert "version 0.0.1 → " in refused.stderr
    assert "--force" in refused.stderr


def test_a_damaged_weight_fails_quality_and_is_named(tmp_path):
    model = shutil.copytree(tiny_checkpoint(), tmp_path / "model")
    tensor = open_checkpoint(model).tensors[DAMAGED]
    with tensor.file.open("r+b") as file:
        file.seek(tensor.offset)
        file.write(bytes(tensor.nbytes // 2))
    with serving(tmp_path, EngineName.CPU, model) as served:
        done = served("--no-measure")
    assert done.returncode == 1
    assert "verdict  quality failed: mean KL" in done.stdout
    assert "worst at position" in done.stdout
    assert f"damaged: {DAMAGED} (model.safetensors)" in done.stdout
    assert "decode" not in done.stdout


@pytest.mark.parametrize(("burst", "code", "word"), [(False, 0, "PASS"), (True, 1, "FAIL")])
def test_a_server_that_delivers_in_bursts_fails_the_stream(tmp_path, burst, code, word):
    script = ScriptPlan(text=LONG, tokens_per_s=100.0, burst=burst)
    with serving(tmp_path, EngineName.SCRIPTED, tiny_checkpoint(), script) as served:
        done = served("stream", "--seconds", "1")
    assert done.returncode == code, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == word
    chat, generate = map(json.loads, lines[:2])
    assert (chat["endpoint"], generate["endpoint"]) == ("/v1/chat/completions", "/generate")
    assert {chat["pass"], generate["pass"]} == {not burst}


def test_without_a_server_bench_says_how_to_get_one(tmp_path):
    environment = {"GLM53_ROOT": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    for words in ([], ["stream"]):
        done = subprocess.run(
            [sys.executable, "-m", "glm53ctl", "bench", *words],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 3
        assert "glm53ctl up" in done.stderr
    shown = subprocess.run(
        [sys.executable, "-m", "glm53ctl", "bench", "sweep", "--help"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (shown.returncode, "--dec-reps" in shown.stdout) == (0, True)


def test_two_settings_are_measured_in_turns(tmp_path):
    environment = {"GLM53_ROOT": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    line = [sys.executable, "-m", "glm53ctl", "bench", "ab", "--model", "tiny", "--json",
            "--port", str(free_port()), "--tokens", "8", "--a", "engine=scripted"]  # fmt: skip
    done = subprocess.run(
        [*line, "--b", "engine=scripted,limits.max_batch=1"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["arms"]["B"]["settings"] == {"GLM53_ENGINE": "scripted", "GLM53_MAX_BATCH": "1"}
    assert [len(found["arms"][letter]["tok_per_s"]) for letter in "AB"] == [6, 6]
    starts = [text.split()[0] for text in done.stderr.splitlines() if "GLM53_ENGINE" in text]
    assert starts == ["A", "B", "B", "A"]
    typo = subprocess.run(
        [*line, "--b", "limits.max_bach=1"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (typo.returncode, "did you mean 'limits.max_batch'" in typo.stderr) == (2, True)
