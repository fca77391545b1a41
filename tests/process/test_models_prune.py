"""`models prune`: what it offers, what it never touches, and that it deletes only when told."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from glm53ctl import cli, fetch
from glm53ctl.errors import Conflict
from glm53ctl.fetch import prune
from glm53ctl.fetch.catalog import FLASH_RELEASE
from glm53ctl.fetch.lockfile import PARTIAL, Lock, LockedFile, part_path, write_lock
from glm53ctl.paths import FLASH_FOLDER, tiny_checkpoint
from glm53ctl.plan import CpuPlan, EngineName, ListenPlan, Mode, ModelPlan, Plan
from glm53ctl.supervisor.state import try_lock

OLD = replace(FLASH_RELEASE, revision="0" * 40)


def checkpoint(folder: Path, revision: str, *, locked: bool = True) -> Path:
    """A whole checkpoint with the lock of a download."""
    shutil.copytree(tiny_checkpoint(), folder)
    files = tuple(
        LockedFile(item.name, item.stat().st_size, f"{number:064x}", verified=True)
        for number, item in enumerate(sorted(folder.iterdir()))
    )
    if locked:
        write_lock(folder, Lock(FLASH_RELEASE.repo, revision, files))
    return folder


@pytest.fixture
def models(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("GLM53_ROOT", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("GLM53_MODEL_DIR", "GLM53_MODELS_DIR", "GLM53_MODEL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def offered(capsys) -> dict[str, dict]:
    assert cli.run(["models", "prune", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["removed"] is False
    assert body["freed_bytes"] == sum(item["freed_bytes"] for item in body["leftovers"])
    return {item["path"]: item for item in body["leftovers"]}


def test_an_old_revision_goes_only_with_yes(models: Path, capsys):
    old = checkpoint(models / "an-old-one", OLD.revision)
    kept = [
        checkpoint(models / FLASH_FOLDER, OLD.revision),
        checkpoint(models / "somebody-elses", OLD.revision, locked=False),
        checkpoint(models / "of-this-revision", FLASH_RELEASE.revision),
    ]
    size_bytes = sum(item.stat().st_size for item in old.iterdir())
    assert offered(capsys)[str(old)]["freed_bytes"] == size_bytes
    assert cli.run(["models", "prune"]) == 0
    shown = capsys.readouterr().out
    assert f"{old}  revision 000000000000; this version uses 332ab457b709" in shown
    assert "glm53ctl models prune --yes" in shown
    assert old.is_dir()
    assert cli.run(["models", "prune", "--yes"]) == 0
    assert "removed  " in capsys.readouterr().out
    assert not old.exists()
    assert all(folder.is_dir() for folder in kept)
    assert cli.run(["models", "prune", "--yes"]) == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_what_an_instance_serves_or_the_settings_name_stays(models: Path, capsys, monkeypatch):
    served = checkpoint(models / "served", OLD.revision)
    named = checkpoint(models / "named", OLD.revision)
    plan = Plan(
        Mode.CPU, EngineName.SCRIPTED, ModelPlan(str(served), "m", 2048), ListenPlan(), CpuPlan(1, ())
    )  # fmt: skip
    file = models.parent / "state/i/plan.json"
    file.parent.mkdir(parents=True)
    file.write_text(plan.to_json())
    monkeypatch.setenv("GLM53_MODEL", str(named))
    assert offered(capsys) == {}
    monkeypatch.delenv("GLM53_MODEL")
    file.write_text("[]")
    assert set(offered(capsys)) == {str(served), str(named)}


def test_parts_stay_while_a_download_goes_on_from_them(models: Path, capsys):
    folder = checkpoint(models / FLASH_FOLDER, FLASH_RELEASE.revision)
    lock = fetch.store.read_lock(folder)
    assert lock is not None
    partial = folder / PARTIAL
    partial.mkdir()
    gone, whole = lock.files[0], lock.files[1]
    (folder / gone.path).unlink()
    needed, stale = part_path(folder, gone), part_path(folder, whole)
    for part in (needed, stale, partial / "model.safetensors.ffff"):
        part.write_bytes(b"12345")
    found = offered(capsys)
    assert set(found) == {str(stale), str(partial / "model.safetensors.ffff")}
    assert {item["freed_bytes"] for item in found.values()} == {5}
    downloading = try_lock(partial / "lock")
    assert downloading is not None
    assert offered(capsys) == {}
    with pytest.raises(Conflict):
        prune.remove(prune.Leftover(str(stale), 5, ""))
    os.close(downloading)
    assert cli.run(["models", "prune", "--yes"]) == 0
    assert [item.name for item in partial.iterdir()] == [needed.name]


def test_an_import_that_was_killed_goes_and_one_under_way_stays(models: Path, capsys):
    left = models / ".x.importing"
    left.mkdir()
    (left / "a").write_bytes(b"1")
    os.link(left / "a", models / "another-link")
    (left / "b").write_bytes(b"22")
    assert offered(capsys) == {}
    long_ago = time.time() - 3600
    for item in (*left.iterdir(), left):
        os.utime(item, (long_ago, long_ago))
    assert offered(capsys)[str(left)]["freed_bytes"] == 2
    assert cli.run(["models", "prune", "--yes"]) == 0
    assert not left.exists()
