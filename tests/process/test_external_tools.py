"""Other projects' tools against the CPU engine, with the lines of docs/benchmarks.md. Each needs its tool.

They are not among the project's dependencies, and large: where `lm_eval` or `guidellm` is not on the
PATH its test is skipped.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from stage import free_port

from glm53ctl import client
from glm53ctl.paths import tiny_checkpoint
from glm53ctl.plan import CpuPlan, EngineName, ListenPlan, Mode, ModelPlan, Plan
from glm53ctl.supervisor.lifecycle import Policy
from glm53ctl.supervisor.state import Instance

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
SUMS = {"What is 17 plus 25?": "42", "What is 31 plus 46?": "77", "What is 12 plus 9?": "21"}


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not installed")


def documented(tool: str, url: str) -> list[str]:
    """The page's command line of a tool, for the server at `url`."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    line = next(block for block in blocks if block.startswith(tool))
    line = line.replace("\\\n", " ").replace("http://127.0.0.1:8080", url)
    return shlex.split(line)


def run(line: list[str], folder: Path) -> None:
    """In that folder, without network, with caches of its own; a failure shows what it said."""
    own = {"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "none"}
    done = subprocess.run(
        line, cwd=folder, env={**os.environ, **own}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def url(tmp_path) -> Iterator[str]:
    """A server of the tiny model on the CPU."""
    place = tmp_path / "state"
    instance = Instance.locate("default", folder=place / "default", runtime_dir=place)
    model = ModelPlan(str(tiny_checkpoint()), "tiny", 4096)
    listen, cpu = ListenPlan(port=free_port()), CpuPlan(2, (0, 1))
    plan = Plan(Mode.CPU, EngineName.CPU, model, listen, cpu)
    assert client.launch(instance, plan, Policy())
    try:
        last = None
        for record in client.watch(instance):
            last = record["phase"]
            if last in {"ready", "failed"}:
                break
        assert last == "ready", instance.log_path.read_text()
        yield plan.url
    finally:
        client.stop(instance, 0.0, force=True)


@needs("lm_eval")
def test_lm_eval_scores_a_toy_task(url, tmp_path):
    (task,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "toy.yaml").write_text(task)
    lines = (json.dumps({"question": q, "answer": a}) for q, a in SUMS.items())
    (tmp_path / "sums.jsonl").write_text("\n".join(lines) + "\n")
    run([*documented("lm_eval", url), "--output_path", "out"], tmp_path)
    (found,) = (tmp_path / "out").rglob("results*.json")
    scores = json.loads(found.read_text())["results"]["toy"]
    assert scores["exact_match,number"] == 1.0, scores


@needs("guidellm")
def test_guidellm_loads_the_server(url, tmp_path):
    (tmp_path / "reference").symlink_to(ROOT / "reference")
    run(documented("guidellm", url), tmp_path)
    (found,) = json.loads((tmp_path / "benchmarks.json").read_text())["benchmarks"]
    counts = found["metrics"]["request_totals"]
    assert (counts["successful"], counts["total"]) == (4, 4)
