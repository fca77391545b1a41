"""The shipped deployment files: Dockerfile, compose file, installer, and the container's entry point."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from glm53ctl import cli, container
from glm53ctl.env import OTHER_NAMES, rows

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")
GUIDE_NAMES = (
    "GLM53_MODE", "GLM53_CT_CPUS", "GLM53_CT_THREADS", "GLM53_CT_B", "GLM53_CT_SWZ", "GLM53_EC_RESERVE_GB",
    "GLM53_EC_ELASTIC_GB", "GLM53_EC_STAGE_GB", "GLM53_TRITON_PIN",
)  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "line"),
    [([], ["up", "--attach", "--yes"]),
     (["-cs", "65536"], ["up", "--attach", "--yes", "-cs", "65536"]),
     (["--mode", "fast"], ["up", "--attach", "--yes", "--mode", "fast"]),
     (["doctor", "--json"], ["doctor", "--json"]),
     (["serve", "-cs", "1024"], ["serve", "-cs", "1024"]),
     (["--version"], ["--version"])],
)  # fmt: skip
def test_arguments_of_a_container_go_to_the_server_unless_they_are_a_verb(arguments, line):
    assert container.command_line(arguments) == line


def test_the_last_of_two_options_wins(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("GLM53_ROOT", str(tmp_path))
    line = ["--engine", "scripted", "--model", "tiny", "-cs", "4096", "-cs", "65536", "-ambs", "2"]
    assert cli.run(["plan", *line, "--json"]) == 0
    limits = yaml.safe_load(capsys.readouterr().out)["plan"]["limits"]
    assert (limits["cache_tokens"], limits["max_batch"]) == (65536, 2)


def test_the_image_has_a_thin_entry_point_and_a_health_check():
    assert 'ENTRYPOINT ["python3", "-m", "glm53ctl.container"]' in DOCKERFILE
    assert "entrypoint.sh" not in DOCKERFILE
    assert "/health" in DOCKERFILE.partition("HEALTHCHECK")[2]
    assert "USER 1000:1000" in DOCKERFILE


def test_the_image_pins_what_the_project_pins():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for pin in ("torch==2.13.0", "exllamav3==1.5.1"):
        assert pin in project
        assert pin in DOCKERFILE
    [archs] = re.findall(r'TORCH_CUDA_ARCH_LIST="([^"]+)"', DOCKERFILE)
    assert {"8.6", "8.9", "9.0"} <= set(archs.split(";"))


def test_the_build_context_holds_what_the_wheel_needs_and_no_more():
    lines = (ROOT / "docker/Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert all(any(ROOT.glob(name)) for name in allowed)
    assert {
        "glm53ctl",
        "server",
        "kernels",
        "profiles",
        "reference",
        "scripts",
        "pyproject.toml",
    } <= allowed


def test_the_build_context_holds_every_file_that_the_wheel_takes_from_elsewhere():
    lines = (ROOT / "docker/Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = [line.removeprefix("!") for line in lines if line.startswith("!")]
    hook = runpy.run_path(str(ROOT / "scripts/hatch_build.py"))
    for source in (*hook["_WHEEL_DATA"], "scripts/hatch_build.py", "README.md", "LICENSE"):
        assert (ROOT / source).exists(), source
        parents = [source, *(str(folder) for folder in Path(source).parents)]
        assert any(fnmatch(name, pattern) for name in parents for pattern in allowed), source


def test_variables_of_the_image_and_of_the_compose_file_are_known():
    known = {row.env for row in rows()} | set(OTHER_NAMES)
    compose = yaml.safe_load((ROOT / "docker/compose.yaml").read_text(encoding="utf-8"))
    service = compose["services"]["glm53"]
    ours = {name for name in service["environment"] if name.startswith("GLM53_")}
    assert ours <= known
    assert set(GUIDE_NAMES) <= ours
    environment = DOCKERFILE.partition("ENV PATH=/opt/glm53/bin:$PATH \\")[2].partition("WORKDIR")[
        0
    ]
    assert set(re.findall(r"(GLM53_\w+)=", environment)) <= known


def test_the_compose_file_keeps_the_rules_of_emit():
    compose = yaml.safe_load((ROOT / "docker/compose.yaml").read_text(encoding="utf-8"))
    service = compose["services"]["glm53"]
    assert service["ulimits"] == {"memlock": -1}
    assert service["logging"]["options"] == {"max-size": "20m", "max-file": "5"}
    assert service["ports"][0].startswith("127.0.0.1:")
    assert service["init"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "/health" in service["healthcheck"]["test"][1]
    assert not any(":z" in mount.lower() for mount in service["volumes"])
    assert set(compose["volumes"]) == {"state"}


@pytest.mark.parametrize(
    ("tool", "file"),
    [("hadolint", "docker/Dockerfile"), ("shellcheck", "scripts/install.sh"), ("shellcheck", "scripts/setup.sh")],
)  # fmt: skip
def test_linters_have_nothing_to_say(tool, file):
    found = subprocess.run(
        [Path(sys.executable).with_name(tool), ROOT / file], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert (found.returncode, found.stdout) == (0, "")


def install(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts/install.sh", *arguments], capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
    )  # fmt: skip


def test_the_installer_says_what_it_would_do_and_does_nothing(tmp_path):
    found = install(tmp_path, "--dry-run", "--extra", "cpu", "some.whl")
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert lines[1].startswith(f"{tmp_path}/.local/share/glm53/venv/bin/python -m pip install")
    assert lines[1].rstrip().endswith("some.whl\\[cpu\\]")
    assert lines[3].startswith("ln -sfn")
    assert list(tmp_path.iterdir()) == []
    assert install(tmp_path, "--nonsense").returncode == 2
    assert "--uninstall" in install(tmp_path, "--help").stdout


def test_the_installer_removes_only_what_it_made(tmp_path):
    (tmp_path / ".local/share/glm53/venv/bin").mkdir(parents=True)
    (tmp_path / ".local/share/glm53/models").mkdir()
    (tmp_path / ".local/bin").mkdir()
    (tmp_path / ".local/bin/glm53ctl").symlink_to(tmp_path / ".local/share/glm53/venv/bin/glm53ctl")
    assert install(tmp_path, "--uninstall").returncode == 0
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == [
        ".local",
        ".local/bin",
        ".local/share",
        ".local/share/glm53",
        ".local/share/glm53/models",
    ]


def test_every_emit_and_report_command_of_the_page_on_installing_works(
    monkeypatch, capsys, tmp_path
):
    for name, value in {
        "HOME": str(tmp_path), "GLM53_ROOT": str(tmp_path / "root"), "GLM53_ENGINE": "scripted", "GLM53_MODEL": "tiny",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    plan = tmp_path / "root/state/left/plan.json"
    plan.parent.mkdir(parents=True)
    assert cli.run(["plan", "--json"]) == 0
    plan.write_text(json.dumps(yaml.safe_load(capsys.readouterr().out)["plan"]))
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\$ glm53ctl ((?:emit|report) .*)$", page, re.MULTILINE)
    assert len(lines) >= 8
    for line in lines:
        assert cli.run(line.split()) == 0, line
        assert capsys.readouterr().out
    assert (tmp_path / "config/systemd/user/glm53.service").is_file()
    assert (tmp_path / "report.tar.gz").is_file()
