"""What verbs on instances say when they are interrupted, and that hints name the instance."""

from __future__ import annotations

from pathlib import Path

import pytest

from glm53ctl import client, starting
from glm53ctl.errors import NotRunning
from glm53ctl.supervisor.state import Instance
from glm53ctl.verbs import operate


def instance(folder: Path, name: str = "default") -> Instance:
    return Instance.locate(name, folder=folder / name, runtime_dir=folder)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A start that Ctrl-C interrupts; the names of the instances stopped for it."""
    names: list[str] = []

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(starting, "wait_ready", interrupted)
    monkeypatch.setattr(client, "stop", lambda found, _: names.append(found.name))
    return names


def test_ctrl_c_during_up_says_that_nothing_is_left(tmp_path, stopped, capsys):
    with pytest.raises(KeyboardInterrupt):
        operate.wait_visibly(instance(tmp_path), ours=True)
    assert (stopped, capsys.readouterr().err) == (["default"], "stopped, nothing left running\n")


def test_ctrl_c_beside_a_start_of_another_command_leaves_it(tmp_path, stopped, capsys):
    with pytest.raises(KeyboardInterrupt):
        operate.wait_visibly(instance(tmp_path, "two"), ours=False)
    told = "it goes on starting: glm53ctl status --instance two --watch\n"
    assert (stopped, capsys.readouterr().err) == ([], told)


def test_hints_name_the_instance(tmp_path):
    for name, hint in (("default", "glm53ctl up"), ("two", "glm53ctl up --instance two")):
        with pytest.raises(NotRunning) as error:
            client.request(instance(tmp_path, name), {"verb": "status"})
        assert error.value.hint == hint
