"""`models prune`: what it offers, what it never touches, and that it deletes only when told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from stage import free_port, wait_until

from glm53ctl import cli, in_use, render
from glm53ctl.errors import Conflict
from glm53ctl.fetch import prune
from glm53ctl.fetch.catalog import FLASH_RELEASE
from glm53ctl.fetch.lockfile import (
    PARTIAL,
    Lock,
    LockedFile,
    part_path,
    read_lock,
    write_lock,
)
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
    file = models.parent / "state/i/plan.json"
    file.parent.mkdir(parents=True)
    file.write_text(plan_of(served).to_json())
    monkeypatch.setenv("GLM53_MODEL", str(named))
    assert offered(capsys) == {}
    monkeypatch.delenv("GLM53_MODEL")
    file.write_text("[]")
    assert set(offered(capsys)) == {str(served), str(named)}


def test_parts_stay_while_a_download_goes_on_from_them(models: Path, capsys):
    folder = checkpoint(models / FLASH_FOLDER, FLASH_RELEASE.revision)
    lock = read_lock(folder)
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


def plan_of(model: Path) -> Plan:
    return Plan(
        Mode.CPU, EngineName.SCRIPTED, ModelPlan(str(model), "m", 2048), ListenPlan(), CpuPlan(1, ())
    )  # fmt: skip


@pytest.fixture
def running(models: Path) -> Iterator[Path]:
    """The folder of an instance whose lock is held."""
    folder = models.parent / "state/busy"
    folder.mkdir(parents=True)
    fd = try_lock(folder / "lock")
    assert fd is not None
    yield folder
    os.close(fd)


@pytest.mark.parametrize("text", [
    None, "", "[]", "null", "{", "\xff", '{"model": {}}', '{"model": {"path": 3}}', '{"model": []}',
    '{"model": {"path": ""}}', "[" * 100_000,
])  # fmt: skip
def test_beside_a_server_of_an_unknown_model_nothing_goes(models: Path, running, text, capsys):
    old = checkpoint(models / "old", OLD.revision)
    if text is not None:
        (running / "plan.json").write_text(text, encoding="latin-1")
    for verb in (["prune"], ["prune", "--yes"], ["rm", "old", "--yes"]):
        assert cli.run(["models", *verb]) == 6
        told = capsys.readouterr().err
        assert "instance 'busy' is running" in told
        assert "glm53ctl down --instance busy" in told
    assert old.is_dir()


@pytest.mark.parametrize("change", [{"schema": "glm53ctl.plan/9"}, {"new": 1}, {"mode": "warp"}])
def test_a_plan_of_another_version_still_tells_its_model(models: Path, running, change, capsys):
    old, served = (checkpoint(models / name, OLD.revision) for name in ("old", "served"))
    body = json.loads(plan_of(served).to_json()) | change
    (running / "plan.json").write_text(json.dumps(body))
    assert set(offered(capsys)) == {str(old)}
    assert cli.run(["models", "rm", "served", "--yes"]) == 6
    assert "in use by instance busy" in capsys.readouterr().err
    assert served.is_dir()


def test_a_lock_that_cannot_be_opened_counts_as_held(models: Path, capsys):
    checkpoint(models / "old", OLD.revision)
    (models.parent / "state/odd/lock").mkdir(parents=True)
    (models.parent / "state/a-file").write_text("")
    assert cli.run(["models", "prune", "--yes"]) == 6
    assert "instance 'odd'" in capsys.readouterr().err


def test_what_a_server_holds_stays_without_any_plan(models: Path, capsys):
    old = checkpoint(models / "old", OLD.revision)
    found = prune.Leftover(str(old), 1, "")
    with in_use.held(old), in_use.held(old):
        assert offered(capsys) == {}
        with pytest.raises(Conflict):
            prune.remove(found)
        assert cli.run(["models", "rm", "old", "--yes"]) == 6
        assert "in use by a running server" in capsys.readouterr().err
    assert set(offered(capsys)) == {str(old)}
    with in_use.alone(old), pytest.raises(Conflict), in_use.held(old):
        pass
    prune.remove(found)
    assert not old.exists()


@pytest.mark.parametrize("verb", ["serve", "up"])
def test_a_real_server_keeps_its_checkpoint(models: Path, verb: str, capsys, monkeypatch):
    old = checkpoint(models / "old", OLD.revision)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    command = [sys.executable, "-m", "glm53ctl"]
    start = [verb, "--engine", "scripted", "--model", str(old), "--port", str(free_port())]
    with subprocess.Popen([*command, *start], stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: in_use.is_held(old))
        if verb == "up":
            assert process.wait() == 0
            shutil.rmtree(models.parent / "state/default")
        assert cli.run(["models", "prune", "--yes"]) == 0
        assert cli.run(["models", "rm", "old", "--yes"]) == 6
        assert "in use by a running server" in capsys.readouterr().err
        if verb == "up":
            subprocess.run([*command, "down", "--force"], check=False, capture_output=True)
        process.terminate()
    assert (old / "config.json").exists()
    wait_until(lambda: not in_use.is_held(old))


@pytest.mark.parametrize("revision", [OLD.revision, FLASH_RELEASE.revision])
@pytest.mark.parametrize("linked", ["partial", "lock", "model", "pinned model", "import", "part"])
def test_nothing_behind_a_symlink_is_touched(models: Path, linked: str, revision: str, capsys):
    outside = checkpoint(models.parent / "elsewhere", revision)
    (outside / PARTIAL).mkdir()
    (outside / PARTIAL / "a.part").write_bytes(b"12345")
    (outside / PARTIAL / "lock").write_bytes(b"")
    for item in (*outside.rglob("*"), outside):
        os.utime(item, (1, 1))
    before = sorted(outside.rglob("*"))
    if linked in {"model", "pinned model", "import"}:
        names = {"model": "m", "pinned model": FLASH_FOLDER, "import": ".z.importing"}
        (models / names[linked]).symlink_to(outside)
    else:
        partial = checkpoint(models / "m", FLASH_RELEASE.revision) / PARTIAL
        if linked == "partial":
            partial.symlink_to(outside / PARTIAL)
        else:
            partial.mkdir()
            other = "a.part" if linked == "lock" else "lock"
            (partial / other).write_bytes(b"")
            mine = "lock" if linked == "lock" else "a.part"
            (partial / mine).symlink_to(outside / PARTIAL / mine)
    assert cli.run(["models", "prune", "--yes"]) == 0
    told = capsys.readouterr().err
    assert ("left alone" in told) == (linked in {"partial", "lock", "import"})
    assert sorted(outside.rglob("*")) == before
    assert (models / "m" / PARTIAL).exists() == (linked in {"partial", "lock", "model"})


def test_odd_entries_stop_nothing_and_are_told(models: Path, capsys, monkeypatch):
    old = checkpoint(models / "old", OLD.revision)
    (models / ".file.importing").write_text("x")
    (models / ".dangling.importing").symlink_to("nowhere")
    odd = checkpoint(models / "odd", FLASH_RELEASE.revision) / PARTIAL
    odd.write_text("a file")
    strange = checkpoint(models / "strange", FLASH_RELEASE.revision) / PARTIAL
    (strange / "a.folder").mkdir(parents=True)
    locked = checkpoint(models / "locked", OLD.revision)
    refusing = shutil.rmtree

    def rmtree(path: Path) -> None:
        if path == locked:
            raise PermissionError(13, "Permission denied")
        refusing(path)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert cli.run(["models", "prune", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert {Path(item["path"]).name for item in body["left_alone"]} == {
        ".file.importing", ".dangling.importing", PARTIAL,
    }  # fmt: skip
    assert cli.run(["models", "prune", "--yes", "--json"]) == 7
    told = json.loads(capsys.readouterr().out)["error"]["message"]
    assert told.startswith("1 of 2 removed; not these:")
    assert f"cannot remove {locked}: Permission denied" in told
    assert not old.exists()
    assert (models / ".dangling.importing").is_symlink()


def test_what_vanishes_meanwhile_is_no_error(models: Path, monkeypatch, capsys):
    gone, old = models / ".x.importing", checkpoint(models / "old", OLD.revision)
    gone.mkdir()
    listing, is_dir = prune._import, Path.is_dir
    monkeypatch.setattr(prune, "_import", lambda folder: (gone.rmdir(), listing(folder))[1])
    monkeypatch.setattr(Path, "is_dir", lambda path: path == gone or is_dir(path))
    assert set(offered(capsys)) == {str(old)}
    prune.remove(prune.Leftover(str(gone), 1, ""))
    prune.remove(prune.Leftover(str(models / "m" / PARTIAL / "a.part"), 1, ""))


@pytest.mark.parametrize(
    "name", ["old", "./old", "../models/old", "~/models/old", "link", "{}/old"]
)
def test_the_model_that_the_settings_name_stays_however_it_is_spelled(
    models: Path, name: str, capsys, monkeypatch
):
    checkpoint(models / "old", OLD.revision)
    other = checkpoint(models / "other", OLD.revision)
    (models / "link").symlink_to("old")
    monkeypatch.chdir(models)
    monkeypatch.setenv("HOME", str(models.parent))
    monkeypatch.setenv("GLM53_MODEL", name.format(models))
    assert set(offered(capsys)) == {str(other)}


@pytest.mark.parametrize("name", ["~nouser/x", "~nouser", "loop/x", "loop"])
def test_a_name_that_is_no_directory_is_told(models: Path, name: str, capsys, monkeypatch):
    old = checkpoint(models / "old", OLD.revision)
    (models / "loop").symlink_to("loop")
    monkeypatch.chdir(models)
    monkeypatch.setenv("GLM53_MODEL", name)
    code = cli.run(["models", "prune", "--yes"])
    assert code == 7
    assert "error[ART-001]: there is no directory '" in capsys.readouterr().err
    assert old.is_dir()


@pytest.mark.parametrize("name", [
    b"a\x1b[2Jb", b"a\x1b]0;owned\x07b", b"a\nb", b"a\rb", b"a\xc2\x9bb", b"a\xffb", b"a\x7fb",
    "a\u202eb".encode(), "größe ✔".encode(),
])  # fmt: skip
def test_names_of_others_command_no_terminal_and_break_no_json(models: Path, name, capsysbinary):
    """Whatever bytes a folder is called by, on stdout and stderr, as text and as JSON."""
    folder = checkpoint(Path(os.fsdecode(os.fsencode(models) + b"/" + name)), OLD.revision)
    odd = folder.with_name("." + folder.name + ".importing")
    odd.symlink_to("nowhere")
    for verb, place in (("prune", "leftovers"), ("list", "models")):
        assert cli.run(["models", verb, "--json"]) == 0
        body = json.loads(capsysbinary.readouterr().out.decode())
        assert str(folder) in {item["path"] for item in body[place]}
    for verb in (["list"], ["prune"], ["rm", folder.name + "?"], ["rm", folder.name, "--yes"]):
        cli.run(["models", *verb])
        told = b"".join(capsysbinary.readouterr()).decode()
        assert render.plain(folder.name) in told
        assert all(letter.isprintable() or letter == "\n" for letter in told)
        assert folder.name in told or not folder.name.isprintable()
        assert "a\nb" not in told
    assert not folder.exists()
