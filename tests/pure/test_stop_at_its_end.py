"""`down --force` on a supervisor that ends by itself at the same moment."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from glm53ctl import client
from glm53ctl.errors import Conflict, Glm53Error, NotRunning, Unhealthy
from glm53ctl.supervisor.state import Identity, Instance, is_locked, try_lock

ENDED = Identity(pid=2**22 + 1, start_ticks=1, boot_id="another")


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    made = Instance.locate("t", folder=tmp_path / "t", runtime_dir=tmp_path)
    made.create()
    return made


def refusing(error: Glm53Error) -> Callable[..., None]:
    def request(*_: object) -> None:
        raise error

    return request


@pytest.fixture(params=[NotRunning("gone"), Unhealthy("deaf")], ids=["no socket", "no answer"])
def at_its_end(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor does not answer; it is seen by its record once, if at all."""
    seen = iter([ENDED] if isinstance(request.param, NotRunning) else [])
    monkeypatch.setattr(client, "request", refusing(request.param))
    monkeypatch.setattr(client, "holder", lambda _: next(seen, None))


@pytest.mark.usefixtures("at_its_end")
def test_one_that_has_ended_meanwhile_is_stopped(instance: Instance):
    assert client.stop(instance, None, force=True)


@pytest.mark.usefixtures("at_its_end")
def test_one_that_holds_its_lock_a_moment_longer_is_waited_for(instance: Instance):
    fd = try_lock(instance.lock_path)
    assert fd is not None
    timer = threading.Timer(0.3, os.close, [fd])
    timer.start()
    assert client.stop(instance, None, force=True)
    timer.join()
    assert not is_locked(instance.lock_path)


@pytest.mark.usefixtures("at_its_end")
def test_a_lock_that_stays_is_somebody_elses(instance: Instance, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client, "_LOCK_RETRY_S", 0.2)
    fd = try_lock(instance.lock_path)
    assert fd is not None
    try:
        with pytest.raises(Conflict, match="left no record"):
            client.stop(instance, None, force=True)
    finally:
        os.close(fd)
