"""Completion in the shells: verbs, options and values, fast, and asking neither driver nor server."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from glm53ctl import config_edit
from glm53ctl.env import Environ, rows
from glm53ctl.paths import user_paths
from glm53ctl.verbs import complete

ROOT = Path(__file__).resolve().parents[2]


def offered(line: str, home: Path, shell: str = "bash", **environ: str) -> list[str]:
    """What a shell would offer at the end of a line."""
    words = line.split(" ")
    by_shell = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }
    found = subprocess.run(
        [sys.executable, "-m", "glm53ctl"], cwd=ROOT, capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "_GLM53CTL_COMPLETE": f"complete_{shell}",
             **by_shell[shell], **environ},
    )  # fmt: skip
    assert found.stderr == ""
    return found.stdout.split()


@pytest.mark.parametrize(
    ("line", "among"),
    [("glm53ctl models pu", "pull"), ("glm53ctl emit ", "quadlet"), ("glm53ctl up --cache", "--cache-tokens"),
     ("glm53ctl up --set listen.p", "listen.port="), ("glm53ctl doctor --only GPU-0", "GPU-004"),
     ("glm53ctl help exit", "exit-codes"), ("glm53ctl help do", "doctor")],
)  # fmt: skip
def test_bash_completes_verbs_options_and_values(tmp_path, line, among):
    assert among in offered(line, tmp_path)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_complete_too(tmp_path, shell):
    assert "tiny" in " ".join(offered("glm53ctl up --model t", tmp_path, shell))


def test_config_completes_every_key(tmp_path):
    every = {row.key for row in rows()}
    assert set(offered("glm53ctl config set ", tmp_path)) == every
    assert offered("glm53ctl config set vram.res", tmp_path) == ["vram.reserve_gib"]
    assert offered("glm53ctl config unset ", tmp_path) == [], "nothing is set"
    file = user_paths(Environ({"HOME": str(tmp_path)})).config_file
    for key, value in (("listen.port", "9000"), ("mode", "exact")):
        config_edit.set_value(file, key, value)
    assert set(offered("glm53ctl config unset ", tmp_path)) == {"listen.port", "mode"}


@pytest.mark.parametrize(
    ("typed", "among"), [("mode e", ["exact"]), ("model.name t", ["tiny"]), ("listen.port 8", [])]
)
def test_config_completes_the_values_that_can_be_listed(tmp_path, typed, among):
    assert offered(f"glm53ctl config set {typed}", tmp_path) == among


def test_profiles_instances_and_directories_come_from_files(tmp_path):
    state = tmp_path / "state" / "attic"
    state.mkdir(parents=True)
    (state / "plan.json").write_text("{}")
    assert offered("glm53ctl logs --instance a", tmp_path, GLM53_ROOT=str(tmp_path)) == ["attic"]
    assert "auto" in complete.profiles("a")
    assert complete.modes("e") == ["exact"]
    assert complete.models(f"{tmp_path}/st") == [f"{tmp_path}/state/"]
    assert complete.models("/nowhere/x") == []


def test_gpus_are_read_from_the_drivers_list(tmp_path, monkeypatch):
    folder = tmp_path / "0000:01:00.0"
    folder.mkdir()
    (folder / "information").write_text(
        "Model: \t RTX\nGPU UUID: \t GPU-52a3a85d-3c55\nBus: \t PCIe\n"
    )
    (tmp_path / "0000:02:00.0").mkdir()
    monkeypatch.setattr(complete, "_GPU_FOLDER", tmp_path)
    assert complete.gpus("") == ["GPU-52a3a85d-3c55", "pci:0000:01:00.0"]
    assert complete.gpus("GPU") == ["GPU-52a3a85d-3c55"]


@pytest.mark.parametrize("line", ["glm53ctl up --mode f", "glm53ctl config set listen.p"])
def test_completion_is_quick(tmp_path, request, line):
    """In CPU time: the machine that runs the tests may be busy."""

    def spent_s() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    took: list[float] = []
    for _ in range(3):
        started = spent_s()
        offered(line, tmp_path)
        took.append(spent_s() - started)
    request.config.get_terminal_writer().line(f" completion: {min(took) * 1000:.0f} ms of CPU")
    assert min(took) < 0.5


@pytest.mark.parametrize(
    "typed", ["~nosuchuser/", "/nowhere/at/all", "/root/x\0y/", "/" + "a" * 5000, "./\udcff", "[*"]
)
@pytest.mark.parametrize("offer", [complete.models, complete.profiles, complete.gpus])
def test_what_names_nothing_is_no_trouble(offer: Callable[[str], list[str]], typed: str):
    assert set(offer(typed)) <= set(complete.models(""))
