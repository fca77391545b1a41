"""The wheel in an empty environment: it runs, it carries its data, and nothing leaks from the checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*argv: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in argv], cwd=cwd, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd)},
    )  # fmt: skip


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """An empty environment with the wheel; the dependencies come from this one, by path."""
    folder = tmp_path_factory.mktemp("env")
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    installed = run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    assert installed.returncode == 0, installed.stderr
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def test_the_wheel_holds_the_three_packages_and_their_data(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {"glm53ctl", "glm53_server", "glm53_kernels"} <= tops
    assert not {"server", "kernels", "tests", "bench", "scripts", "reference"} & tops
    assert "glm53ctl/_profiles/auto.toml" in names
    assert "glm53ctl/_reference/tiny/model.safetensors" in names
    assert "glm53ctl/_reference/tiny/README.md" in names  # its model card
    assert wheel.stat().st_size <= 25e6
    assert any(name.startswith("glm53_kernels/_lib/libglm53_cpu") for name in names)
    assert wheel.name.endswith("py3-none-linux_x86_64.whl")


def test_the_command_runs_from_the_wheel(python, tmp_path):
    command = python.parent / "glm53ctl"
    shown = run(command, "--version", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("glm53ctl ")
    planned = run(command, "plan", "--model", "tiny", "--json", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    path = Path(json.loads(planned.stdout)["plan"]["model"]["path"])
    assert path.parts[-3:] == ("glm53ctl", "_reference", "tiny")
    assert str(ROOT) not in str(path)


@pytest.mark.parametrize("module", ["server", "kernels", "tests", "scripts", "reference"])
def test_nothing_of_the_checkout_can_be_imported(python, tmp_path, module):
    found = run(python, "-c", f"import {module}", cwd=tmp_path)
    assert "ModuleNotFoundError" in found.stderr
