"""A private instance and helpers around a real supervisor with the scripted engine."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from glm53ctl import client
from glm53ctl.paths import tiny_checkpoint
from glm53ctl.plan import (
    CpuPlan,
    EngineName,
    ListenPlan,
    Mode,
    ModelPlan,
    Plan,
    ScriptPlan,
)
from glm53ctl.supervisor.lifecycle import Policy
from glm53ctl.supervisor.state import Identity, Instance, session_members

FAST = Policy(
    start_stall_s=30.0,
    drain_s=2.0,
    grace_s=1.0,
    kill_s=3.0,
    backoff_first_s=0.1,
    backoff_cap_s=0.4,
    poll_s=0.1,
    stall_s=0.3,
    silent_s=10.0,
)


class Started(subprocess.Popen[str]):
    """A command that does not outlive its `with` when a test fails in it."""

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, *rest)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(true: Callable[[], object], limit_s: float = 30.0) -> object:
    """Poll for something that happens in other processes; returns the first true value."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if found := true():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not true within {limit_s} s")


class Stage:
    """One instance in a private directory."""

    def __init__(self, folder: Path) -> None:
        self.instance = Instance.locate("t", folder=folder / "t", runtime_dir=folder)
        self.port = free_port()

    def plan(self, *, host: str = "127.0.0.1", **script: object) -> Plan:
        return Plan(
            mode=Mode.CPU,
            engine=EngineName.SCRIPTED,
            model=ModelPlan(str(tiny_checkpoint()), "tiny", 2048),
            listen=ListenPlan(host, self.port),
            cpu=CpuPlan(1, ()),
            script=ScriptPlan(**script),
        )

    def up(self, policy: Policy = FAST, **script: object) -> dict:
        """Launch and wait until ready or ended; returns the last record."""
        assert client.launch(self.instance, self.plan(**script), policy)
        return self.settle()

    def settle(self) -> dict:
        record = {}
        for record in client.watch(self.instance):
            if record["phase"] == "ready":
                break
        return record

    def record(self) -> dict:
        return client.request(self.instance, {"verb": "status"})

    def wait_for(self, phase: str, *, restarts: int = 0, limit_s: float = 30.0) -> dict:
        def there() -> dict | None:
            found, _ = client.current(self.instance)
            right = found and found["phase"] == phase and found["restarts"] >= restarts
            return found if right else None

        return wait_until(there, limit_s)  # type: ignore[return-value]

    def pids(self) -> tuple[int, int]:
        """(supervisor, child)"""
        record = self.record()
        return record["supervisor"]["pid"], record["child"]["pid"]

    def log(self) -> str:
        return self.instance.log_path.read_text()

    def assert_nothing_left(self, *pids: int) -> None:
        for pid in pids:
            wait_until(lambda pid=pid: Identity.of(pid) is None, 5)
            assert session_members(pid) == []
        assert not self.instance.lock_path.exists()
        assert not self.instance.socket_path.exists()
