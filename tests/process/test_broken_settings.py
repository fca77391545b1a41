"""Settings that cannot be read never stand between a user and a server that runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glm53ctl import cli, client
from glm53ctl.supervisor.state import Instance

BROKEN = {
    "not TOML": "garbage = [\n",
    "unknown key": "[listen]\nprot = 1\n",
    "bad value": "[listen]\nport = 'many'\n",
    "not text": b"\xff\xfe",
}
ACT = ("status", "logs", "down", "down --force", "down --instance default", "restart")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "GLM53_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".config/glm53").mkdir(parents=True)
    return tmp_path


def spoil(home: Path, text: str | bytes) -> Path:
    file = home / ".config/glm53/config.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


@pytest.mark.parametrize("text", [BROKEN["not TOML"], BROKEN["bad value"]])
def test_a_running_server_is_seen_and_stopped(home, stage, capsys, text):
    folder = home / ".local/state/glm53"
    stage.instance = Instance.locate("default", folder=folder / "default", runtime_dir=folder)
    stage.up()
    file = spoil(home, text)
    for line, code in (
        ("status --json", 0),
        ("logs -n 5", 0),
        ("restart --drain 0", 0),
        ("down --drain 0", 0),
    ):
        assert cli.run(line.split()) == code, line
        told = capsys.readouterr().err
        assert f"warning: {file}" in told or f"warning: cannot read {file}" in told
    assert not client.is_running(stage.instance)


@pytest.mark.parametrize("line", ACT)
@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_without_a_server_the_answer_is_that_of_good_settings(home, capsys, text, line):
    good = cli.run(line.split())
    words = capsys.readouterr()
    spoil(home, text)
    assert cli.run(line.split()) == good
    broken = capsys.readouterr()
    assert broken.out.split(" after ")[0] == words.out.split(" after ")[0]
    assert "warning: " in broken.err


def test_the_places_that_a_broken_file_names_are_still_found(home, stage, capsys):
    root = home / "elsewhere"
    stage.instance = Instance.locate(
        "second", folder=root / "state/second", runtime_dir=root / "state"
    )
    stage.up()
    spoil(home, f"instance = 'second'\n[paths]\nroot = '{root}'\n[listen\n")
    assert cli.run(["down", "--drain", "0"]) == 0
    assert capsys.readouterr().out.startswith("second: stopped after")


def test_a_variable_that_is_wrong_does_not_lock_out_either(home, monkeypatch, capsys):
    monkeypatch.setenv("GLM53_PORT", "many")
    monkeypatch.setenv("GLM53_INSTANCE", "second")
    assert cli.run(["down"]) == 0
    out, err = capsys.readouterr()
    assert out == "second: was not running\n"
    assert "GLM53_PORT: 'many'" in err


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_doctor_reports_it_and_goes_on(home, capsys, text):
    file = spoil(home, text)
    assert cli.run(["doctor", "--only", "CFG-001"]) == 4
    out = capsys.readouterr().out
    assert "CFG-001" in out
    assert str(file) in out
    assert "fix  " in out
    assert cli.run(["doctor", "--quick", "--json", "--model", "tiny"]) == 4
    body = json.loads(capsys.readouterr().out)
    assert body["blocking"] == ["CFG-001"]


def test_doctor_still_refuses_wrong_flags(home, capsys):
    spoil(home, BROKEN["not TOML"])
    assert cli.run(["doctor", "--quick", "--mode", "fsat"]) == 2
    assert "did you mean 'fast'?" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["config show", "up --model tiny", "plan --model tiny", "config set listen.port 1"])  # fmt: skip
def test_what_needs_the_settings_names_the_line_and_the_way_out(home, capsys, line):
    file = spoil(home, BROKEN["not TOML"])
    assert cli.run(line.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error[CFG-005]: {file}:1: not valid TOML: ")
    assert f"mv {file} {file}.broken" in err
    assert file.read_text() == BROKEN["not TOML"]
