"""`upgrade` and `rollback`: a second environment is tried before the link leads to it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from glm53ctl import cli, installed
from glm53ctl.env import Environ
from glm53ctl.errors import Glm53Error, StartFailed, UsageError

ROOT = Path(__file__).resolve().parents[2]
OLD, NEW = "20260101T000000", "20260202T000000"


def program(environment: Path, script: str = "echo glm53ctl 9.9") -> Path:
    """An environment whose program is a shell script."""
    file = environment / "bin/glm53ctl"
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return environment


@pytest.fixture
def home(tmp_path: Path) -> Path:
    program(tmp_path / "share/venv")
    (tmp_path / ".local/bin").mkdir(parents=True)
    (tmp_path / ".local/bin/glm53ctl").symlink_to(tmp_path / "share/venv/bin/glm53ctl")
    return tmp_path


def found_in(home: Path) -> installed.Installation:
    link = home / ".local/bin/glm53ctl"
    return installed.find(Environ({"HOME": str(home)}), link.resolve().parent.parent)


def test_the_link_follows_and_leads_back(home: Path):
    first = found_in(home)
    assert first.previous is None
    new = program(first.beside(NEW))
    assert new == home / "share" / f"venv-{NEW}"
    second = installed.switch(first, new)
    assert second == found_in(home)
    assert (second.current, second.previous) == (new, first.current)
    back = installed.switch(second, first.current)
    assert back == found_in(home)
    assert (back.current, back.previous) == (first.current, new)
    assert back.beside(OLD) == home / "share" / f"venv-{OLD}"


def test_only_what_nothing_needs_is_removed(home: Path):
    old = program(home / "share" / f"venv-{OLD}")
    busy = program(home / "share" / "venv-20250101T000000", "read line")
    other = program(home / "share/venv-of-mine")
    now = installed.switch(found_in(home), program(found_in(home).beside(NEW)))
    with subprocess.Popen([busy / "bin/glm53ctl"], stdin=subprocess.PIPE) as running:
        assert installed.remove_unused(now) == [old]
        running.communicate(b"\n")
    assert installed.remove_unused(now) == [busy]
    assert other.is_dir()
    assert now.previous == home / "share/venv"


@pytest.mark.parametrize("case", ["a checkout", "a broken link", "no link", "another program"])
def test_what_the_installer_did_not_make_is_refused(home: Path, case: str):
    link, prefix = home / ".local/bin/glm53ctl", home / "share/venv"
    if case == "a checkout":
        prefix = ROOT / ".venv"
    elif case == "a broken link":
        (prefix / "bin/glm53ctl").unlink()
    elif case == "no link":
        link.unlink()
    else:
        link.unlink()
        link.write_text("#!/bin/sh\n")
    with pytest.raises(UsageError) as error:
        installed.find(Environ({"HOME": str(home)}), prefix)
    assert "git pull" in str(error.value.hint)


@pytest.mark.parametrize(
    ("script", "words"),
    [("echo it is broken >&2; exit 3", "--version` of the new version ended with 3:\n  | it is broken"),
     ('[ "$1" = up ] && { echo no torch >&2; exit 8; }; exit 0', "ended with 8:\n  | no torch")],
)  # fmt: skip
def test_a_version_that_does_not_serve_is_told(tmp_path: Path, script: str, words: str):
    environment = program(tmp_path / "venv", script)
    with pytest.raises(StartFailed) as error:
        installed.try_out(environment, Environ.current(), serve=True)
    assert words in error.value.message


def test_a_trial_sees_no_settings_and_leaves_nothing(tmp_path: Path):
    trace = tmp_path / "trace"
    environment = program(tmp_path / "venv", f'echo "$1 $GLM53_MODE $GLM53_ROOT" >> {trace}')
    values = {"PATH": os.environ["PATH"], "GLM53_MODE": "exact"}
    installed.try_out(environment, Environ(values), serve=True)
    lines = [line.split() for line in trace.read_text().splitlines()]
    assert [line[0] for line in lines] == ["--version", "up", "down"]
    [root] = {line[1] for line in lines}
    assert not Path(root).exists()


def test_what_pip_refuses_leaves_no_environment(tmp_path: Path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(
        """#!/bin/sh
        if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit 0; fi
        echo "no such wheel: $6" >&2
        exit 1
        """
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(Glm53Error) as error:
        installed.stage(tmp_path / "venv", "junk.whl")
    assert "  | no such wheel: junk.whl" in error.value.message
    assert not (tmp_path / "venv").exists()


def test_a_checkout_is_told_how_it_is_upgraded():
    done = subprocess.run(
        [sys.executable, "-m", "glm53ctl", "upgrade", "--json"], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 2
    assert "git pull" in json.loads(done.stdout)["error"]["hint"]


@pytest.mark.slow
def test_installed_upgraded_and_rolled_back_for_real(tmp_path: Path, wheel: Path):
    """The wheel by install.sh, then again by `upgrade`, which serves tiny; dependencies from here."""
    dependencies = tmp_path / "dependencies"
    dependencies.mkdir()
    for item in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "glm53" not in item.name:
            (dependencies / item.name).symlink_to(item)
    env = {
        "HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHON": sys.executable,
        "PYTHONPATH": str(dependencies), "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1",
    }  # fmt: skip

    def run(*argv: object) -> subprocess.CompletedProcess[str]:
        words = [str(word) for word in argv]
        done = subprocess.run(
            words, env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done

    run(ROOT / "scripts/install.sh", "--extra", "cpu", wheel)
    command = tmp_path / ".local/bin/glm53ctl"
    first = command.resolve().parent.parent
    told = json.loads(run(command, "upgrade", wheel, "--json").stdout)
    assert told["version"].startswith("glm53ctl ")
    assert (Path(told["folder"]), Path(told["previous"])) == (
        command.resolve().parent.parent,
        first,
    )
    assert Path(told["folder"]) != first
    unit = run(command, "emit", "systemd", "--model", "tiny").stdout
    assert f"ExecStart={command} up" in unit
    run(command, "rollback")
    assert command.resolve().parent.parent == first
    run(ROOT / "scripts/install.sh", "--uninstall")
    assert not list(first.parent.glob("venv*"))


def test_any_number_of_upgrades_keeps_the_last_two(home: Path):
    for number in range(1, 6):
        before = found_in(home)
        new = program(before.beside(f"2026010{number}T000000"))
        installed.remove_unused(installed.switch(before, new))
        now = found_in(home)
        assert (now.current, now.previous) == (new, before.current)
        assert now.environments() == sorted([before.current, new])


def test_an_environment_that_the_disk_keeps_is_no_error(home: Path, monkeypatch):
    old = program(home / "share" / f"venv-{OLD}")
    now = installed.switch(found_in(home), program(found_in(home).beside(NEW)))
    monkeypatch.setattr(os, "rmdir", lambda *_, **__: (_ for _ in ()).throw(OSError(16, "busy")))
    assert installed.remove_unused(now) == []
    assert old.is_dir()


@pytest.mark.parametrize("how", ["link", "relative", "relative to a link", "python", "exe"])
def test_an_environment_that_runs_by_another_path_stays(home: Path, tmp_path: Path, how: str):
    busy = program(home / "share" / f"venv-{OLD}", "read line")
    now = installed.switch(found_in(home), program(found_in(home).beside(NEW)))
    link = tmp_path / "link"
    link.symlink_to(home / "share")
    cwd, word = home, str(link / busy.name / "bin/glm53ctl")
    if how.startswith("relative"):
        cwd, word = (link if "link" in how else home / "share"), f"{busy.name}/bin/glm53ctl"
    command = ["/bin/sh", word]
    if how == "python":
        (busy / "bin/python").symlink_to(Path(sys.executable).resolve())
        command = [str(link / busy.name / "bin/python"), "-c", "input()"]
    elif how == "exe":
        shutil.copy("/bin/cat", busy / "bin/cat")
        command = ["cat"]
    executable = str(busy / "bin/cat") if how == "exe" else None
    with subprocess.Popen(command, executable=executable, cwd=cwd, stdin=-1) as running:
        assert installed.remove_unused(now) == []
        running.communicate(b"\n")
    assert installed.remove_unused(now) == [busy]


REQUIREMENTS = [
    ("glm53ctl", "glm53ctl[cuda,cpu]"),
    ("glm53ctl==0.2.0", "glm53ctl[cuda,cpu]==0.2.0"),
    ("glm53ctl >= 0.2, < 1", "glm53ctl[cuda,cpu]>= 0.2, < 1"),
    ("glm53ctl~=0.2", "glm53ctl[cuda,cpu]~=0.2"),
    ("glm53ctl[bench]==0.2.0", "glm53ctl[bench,cuda,cpu]==0.2.0"),
    ("glm53ctl @ https://h/a/g.whl", "glm53ctl[cuda,cpu] @ https://h/a/g.whl"),
    ("glm53ctl@git+ssh://git@h/a", "glm53ctl[cuda,cpu] @git+ssh://git@h/a"),
    ("https://h/a/glm53ctl-0.2.0-py3-none-any.whl",
     "glm53ctl[cuda,cpu] @ https://h/a/glm53ctl-0.2.0-py3-none-any.whl"),
    ("git+https://user@h/a", "glm53ctl[cuda,cpu] @ git+https://user@h/a"),
    ("glm53ctl; python_version > '3'", "glm53ctl[cuda,cpu] ; python_version > '3'"),
    ("./a==b.whl", "./a==b.whl[cuda,cpu]"),
    ("not/there", "not/there[cuda,cpu]"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "wanted"), REQUIREMENTS)
def test_extras_go_behind_the_name(tmp_path: Path, monkeypatch, given: str, wanted: str):
    """By `upgrade` and by install.sh alike, and as pip's own parser reads it."""
    monkeypatch.chdir(tmp_path)
    if given.startswith("."):
        Path(given).write_text("")
    assert installed.with_extras(given, "cuda,cpu") == wanted
    assert installed.with_extras(given, "") == given
    if "/there" not in given and not given.startswith("."):
        parsed = Requirement(wanted)
        assert parsed.name == "glm53ctl"
        assert {"cuda", "cpu"} <= parsed.extras
    told = subprocess.run(
        [ROOT / "scripts/install.sh", "--dry-run", "--extra", "cuda,cpu", given],
        env={**os.environ, "HOME": str(tmp_path), "PYTHON": sys.executable},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"installing {wanted} into " in told.stderr


def refusal(environment: Path) -> StartFailed:
    with pytest.raises(StartFailed) as error:
        installed.try_out(environment, Environ.current(), serve=True)
    return error.value


def test_a_trial_that_fails_twice_tells_both(tmp_path: Path):
    script = '[ "$1" = up ] && { echo no torch >&2; exit 8; }\n[ "$1" = down ] && { echo stuck >&2; exit 9; }\ntrue'
    told = refusal(program(tmp_path / "both", script)).message
    assert "ended with 8:\n  | no torch" in told
    assert "ended with 9:\n  | stuck" in told
    told = refusal(program(tmp_path / "down", '[ "$1" != down ]')).message
    assert "`down --drain 0` of the new version ended with 1" in told


def test_a_trial_that_hangs_is_stopped_and_told(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(installed, "_TRY_LIMIT_S", 1.0)
    trace = tmp_path / "trace"
    script = f'echo "$1" >> {trace}; [ "$1" != up ] || exec sleep 60'
    assert "has not ended after 1 s" in refusal(program(tmp_path / "venv", script)).message
    assert trace.read_text().split()[-1] == "down"


def test_a_server_that_keeps_the_output_open_delays_no_trial(tmp_path: Path):
    begin = time.monotonic()
    installed.try_out(program(tmp_path / "venv", "sleep 8 &"), Environ.current(), serve=True)
    assert time.monotonic() - begin < 6


@pytest.mark.parametrize("case", ["bytes", "no interpreter", "no program", "not executable"])
def test_a_program_that_cannot_speak_or_run_is_told(tmp_path: Path, case: str):
    environment = program(tmp_path / "venv", "printf 'caf\\351' >&2; exit 1")
    file = environment / "bin/glm53ctl"
    if case == "no interpreter":
        file.write_text("#!/no/such/python\n")
    elif case == "no program":
        file.unlink()
    elif case == "not executable":
        file.chmod(0o600)
    told = refusal(environment)
    assert ("caf\ufffd" if case == "bytes" else "cannot be run") in told.message
    assert told.hint == "nothing was changed: the version you have goes on"


def test_a_python_that_is_gone_is_told(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    with pytest.raises(Glm53Error) as error:
        installed.stage(tmp_path / "venv", "a.whl")
    assert f"cannot run {tmp_path / 'gone'}" in error.value.message


def test_a_dry_run_is_one_document(home: Path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(sys, "prefix", str(home / "share/venv"))
    words = ["upgrade", "glm53ctl==0.2", "--extra", "cpu", "--dry-run", "--json"]
    assert cli.run(words) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["ok"], body["dry_run"]) == (True, True)
    assert body["requirement"] == "glm53ctl[cpu]==0.2"
    assert body["previous"] == str(home / "share/venv")
    assert not Path(body["folder"]).exists()
