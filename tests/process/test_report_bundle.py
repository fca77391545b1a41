"""`report` of real instances with the scripted engine: alive, dying while it looks, and full of secrets."""

from __future__ import annotations

import json
import os
import signal
import tarfile
from pathlib import Path

import pytest
from stage import Stage

from glm53ctl import cli, client, status_view
from glm53ctl.env import Environ
from glm53ctl.probes.system import this_system
from glm53ctl.report.collect import Bundle, collect
from glm53ctl.report.document import markdown


@pytest.fixture
def look(stage: Stage, tmp_path: Path, monkeypatch):
    """The bundle of the stage's instance; the probes look at an empty machine, which is quick."""
    monkeypatch.setenv("GLM53_FAKE_ROOT", str(tmp_path / "machine"))
    (tmp_path / "machine").mkdir()
    environ = Environ({"HOME": str(tmp_path), "GLM53_FAKE_ROOT": str(tmp_path / "machine")})

    def call() -> Bundle:
        return collect(
            stage.instance, environ, this_system(environ), state_dir=tmp_path, with_bench=False
        )

    return call


def test_a_serving_instance_is_described_by_numbers(stage: Stage, look):
    stage.up()
    found = look()
    assert found.findings == []
    assert set(found.parts) >= {"versions.json", "settings.json", "doctor.json", "plan.json", "state.json", "stats.json", "server.log"}  # fmt: skip
    assert json.loads(found.parts["state.json"])["phase"] == "ready"
    assert json.loads(found.parts["plan.json"])["engine"] == "scripted"
    assert str(stage.instance.folder) not in json.dumps(found.parts)
    assert "## glm53ctl report" in markdown(found)
    assert "doctor judged this machine for tiny" in markdown(found)


def test_T041_a_server_that_dies_meanwhile_is_one_finding(stage: Stage, look, monkeypatch):
    stage.up()
    _, child = stage.pids()

    def dies(*_: object, **__: object) -> None:
        os.kill(child, signal.SIGILL)

    monkeypatch.setattr(status_view, "fetch_stats", dies)
    found = look()
    [finding] = found.findings
    assert finding.startswith("was running, crashed (illegal instruction: ")
    assert "SIGILL" in finding
    assert found.skipped == ["stats: the server does not answer"]
    text = markdown(found)
    assert "glm53ctl up`" not in text.partition("<details>")[0]
    assert "start it" not in text


def test_a_failed_start_is_the_finding(stage: Stage, look):
    stage.up(exit_code_at_start=65)
    found = look()
    [finding] = found.findings
    assert finding.startswith("not serving: bad model: ")
    assert found.skipped == ["stats: not serving"]


def test_an_instance_that_never_ran_is_said_and_the_rest_is_there(look):
    found = look()
    assert found.findings == []
    assert found.skipped == ["plan: this instance has none", "instance: never started"]
    assert "doctor.json" in found.parts


def test_T070_T072_no_secret_is_in_the_archive(tmp_path: Path, monkeypatch, capsys):
    secrets = {"GLM53_API_KEY": "sk-sentinel-1", "HF_TOKEN": "hf_" + "t" * 34}
    for name, value in {
        **secrets,
        "HOME": str(tmp_path),
        "GLM53_ROOT": str(tmp_path / "root"),
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GLM53_FAKE_ROOT", str(tmp_path / "machine"))
    (tmp_path / "machine").mkdir()
    log = tmp_path / "root/state/default/logs/server.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"key sk-sentinel-1 and https://hub/?token={secrets['HF_TOKEN']}\nplain line\n")
    crash = tmp_path / "root/state/crash"
    crash.mkdir()
    (crash / "1.txt").write_text(f"Bearer {secrets['HF_TOKEN']}")
    file = tmp_path / "out.tar.gz"
    assert cli.run(["report", "--output", str(file), "--yes"]) == 0
    assert file.stat().st_mode & 0o077 == 0
    with tarfile.open(file) as archive:
        texts = {item.name: archive.extractfile(item).read().decode() for item in archive}  # type: ignore[union-attr]
    assert {"out/report.md", "out/server.log", "out/crash/1.txt", "out/doctor.json"} <= set(texts)
    everything = "".join(texts.values()) + "".join(capsys.readouterr())
    assert "sentinel" not in everything
    assert "hf_ttt" not in everything
    assert "plain line" in texts["out/server.log"]
    assert str(tmp_path) not in "".join(texts.values())
    code = cli.run(["report", "--output", str(file), "--yes"])
    assert code == 1
    assert "cannot write" in capsys.readouterr().err


def test_report_as_text_and_as_json_writes_no_file(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLM53_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("GLM53_FAKE_ROOT", str(tmp_path / "machine"))
    (tmp_path / "machine").mkdir()
    assert cli.run(["report", "--stdout"]) == 0
    assert capsys.readouterr().out.startswith("## glm53ctl report")
    assert cli.run(["report", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["schema"], body["ok"]) == ("glm53ctl.report/1", True)
    assert not list(tmp_path.glob("*.tar.gz"))
    assert client.is_locked(tmp_path / "root/state/default/lock") is False
