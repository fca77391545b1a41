"""The source archive has what the repository has, and nothing else that lies in a checkout."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest
from hatchling.build import build_sdist

ROOT = Path(__file__).resolve().parents[2]
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
INCLUDED = [name.removeprefix("/") for name in BUILD["targets"]["sdist"]["include"]]
ALWAYS = {".gitignore", "pyproject.toml"}  # hatchling's own; it adds PKG-INFO
STRAY = [
    ".gpu/notes.md", ".env", "notes.txt", "models/model.safetensors", "build/lib/x.py",
    "glm53ctl/__pycache__/x.pyc", "kernels/glm53_kernels/_lib/libglm53_cpu.so", "docs.old/x.md",
]  # fmt: skip


def archived(checkout: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    monkeypatch.chdir(checkout)
    target.mkdir()
    with tarfile.open(target / build_sdist(str(target))) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def test_what_else_lies_in_a_checkout_is_left_out(tmp_path, monkeypatch):
    checkout = tmp_path / "checkout"
    files = {name if (ROOT / name).is_file() else f"{name}/deep/file.py" for name in INCLUDED}
    for name in (*files, *STRAY):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("")
    for name in ALWAYS:
        shutil.copy(ROOT / name, checkout)
    assert archived(checkout, tmp_path / "out", monkeypatch) == {*files, *ALWAYS, "PKG-INFO"}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no repository: nothing to compare with")
def test_everything_in_the_repository_is_included():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    tops = {name.partition("/")[0] for name in listed.stdout.split("\0") if name}
    assert tops - ALWAYS == set(INCLUDED)
