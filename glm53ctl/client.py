"""The control plane's view of one instance: start it, ask it, stop it, and clean up after a crash.

Whoever holds the lock may write the instance's files; everybody else only asks the control socket.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict

from glm53ctl.errors import Conflict, Glm53Error, NotRunning, Unhealthy
from glm53ctl.plan import Plan
from glm53ctl.supervisor import logs, owned
from glm53ctl.supervisor.ask import (
    ANSWER_S,
    Record,
    aged_record,
    answers,
    is_running,
    request,
    watch,
)
from glm53ctl.supervisor.classify import supervisor_lost
from glm53ctl.supervisor.lifecycle import Policy
from glm53ctl.supervisor.state import (
    Identity,
    Instance,
    boot_id,
    holder,
    is_locked,
    listen_socket,
    read_record,
    session_members,
    try_lock,
    write_atomic,
    write_record,
)

# fmt: off
__all__ = ["Record", "answers", "clean_up", "current", "is_running", "launch", "request", "stop", "wait_gone", "watch"]
# fmt: on
_LOCK_RETRY_S = 2.0
_STRAY_S = 5.0


def launch(
    instance: Instance,
    plan: Plan,
    policy: Policy | None = None,
    *,
    wishes: Mapping[str, str] | None = None,
) -> bool:
    """Start a supervisor for the plan. False when this instance is running already.

    On return the instance is locked by the supervisor and its control socket takes connections.
    """
    instance.create()
    lock_fd = _lock_patiently(instance)
    if lock_fd is None:
        return False
    try:
        clean_up(instance)
        instance.state_path.unlink(missing_ok=True)  # from here on a record is the new one's
        write_atomic(instance.plan_path, plan.to_json())
        if wishes is not None:
            write_atomic(instance.wishes_path, json.dumps(wishes, indent=2) + "\n")
        with listen_socket(instance.socket_path) as listener:
            _spawn_supervisor(instance, lock_fd, listener.fileno(), policy or Policy())
    finally:
        os.close(lock_fd)
    return True


def _lock_patiently(instance: Instance) -> int | None:
    """Take the lock; when it is held by nobody who answers, somebody may just be letting go."""
    deadline = time.monotonic() + _LOCK_RETRY_S
    while True:
        fd = try_lock(instance.lock_path)
        if fd is not None:
            return fd
        with suppress(NotRunning):
            request(instance, {"verb": "status"})
            return None
        if time.monotonic() > deadline:
            return None
        time.sleep(0.05)


def _spawn_supervisor(instance: Instance, lock_fd: int, control_fd: int, policy: Policy) -> None:
    log_fd = logs.open_append(instance.log_path)
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-P", "-m", "glm53ctl.supervisor"),
                *("--instance", instance.name),
                *("--folder", str(instance.folder)),
                *("--socket", str(instance.socket_path)),
                *("--lock-fd", str(lock_fd)),
                *("--control-fd", str(control_fd)),
                *("--policy", json.dumps(asdict(policy))),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=log_fd,
            cwd=instance.folder,
            pass_fds=(lock_fd, control_fd),
            check=False,
        )
    finally:
        os.close(log_fd)
    if done.returncode != 0:
        raise Glm53Error(
            f"the supervisor could not be started (exit code {done.returncode})",
            hint=f"its output is at the end of {instance.log_path}",
        )


def clean_up(instance: Instance) -> Record | None:
    """Remove what a crashed supervisor left; returns its record, if one was left open.

    Only for the holder of the lock. A child is killed only when it is provably the recorded one.
    """
    instance.socket_path.unlink(missing_ok=True)
    record = read_record(instance)
    if record is None or record["phase"] in {"stopped", "failed"}:
        return None
    child = Identity.from_dict(record.get("child"))
    if child is not None and child.alive():
        _kill_session(child)
    owned.end_strays(instance.folder, limit_s=_STRAY_S)
    supervisor = Identity.from_dict(record.get("supervisor"))
    rebooted = supervisor is None or supervisor.boot_id != boot_id()
    failure = supervisor_lost(rebooted=rebooted, option=instance.option)
    closed = {
        **record,
        "phase": "stopped",
        "child": None,
        "supervisor": None,
        "exit_code": failure.exit_code,
        "last_failure": failure.to_dict(),
    }
    with suppress(OSError):
        write_record(instance, closed)
    return record


def _kill_session(leader: Identity) -> None:
    """Kill a child and what it started, and wait until they are gone."""
    for pid in session_members(leader.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + ANSWER_S
    while session_members(leader.pid) and time.monotonic() < deadline:
        time.sleep(0.02)


def current(instance: Instance) -> tuple[Record | None, bool]:
    """(record, running): the live record, or the last one written.

    A record left by a supervisor that crashed is closed here, so that what is shown is true. A running
    instance has none when its folder was removed and its socket with it.
    """
    try:
        return request(instance, {"verb": "status"}), True
    except NotRunning:
        pass
    if not is_locked(instance.lock_path) and instance.folder.is_dir():
        _clear_stale(instance)
    return aged_record(instance), holder(instance) is not None


def _clear_stale(instance: Instance) -> bool:
    """Clean up after a crashed supervisor; False when there was nothing to clean."""
    lock_fd = try_lock(instance.lock_path)
    if lock_fd is None:
        return False
    try:
        return clean_up(instance) is not None
    finally:
        instance.lock_path.unlink(missing_ok=True)
        os.close(lock_fd)


def stop(
    instance: Instance,
    drain_s: float | None,
    *,
    force: bool = False,
    waiting: Callable[[float], None] | None = None,
) -> bool:
    """Stop an instance and wait until nothing of it is left. False when it was not running.

    `waiting` is told the seconds that open streams get, once a server without any would have ended:
    after the grace that every server has.
    Raises Unhealthy when the supervisor does not answer and `force` is not given.
    """
    try:
        supervisor = Identity.from_dict(request(instance, {"verb": "status"})["supervisor"])
        request(instance, {"verb": "stop", "drain_s": 0.0 if force else drain_s})
    except NotRunning:
        supervisor, drain_s = holder(instance), None
        if supervisor is None:
            return _clear_stale(instance) if instance.folder.is_dir() else False
        if force:
            return _kill_supervisor(instance)
        with suppress(ProcessLookupError):
            os.kill(supervisor.pid, signal.SIGTERM)  # it drains as long as its policy says
    except Unhealthy:
        if not force:
            raise
        return _kill_supervisor(instance)
    policy = Policy()
    drain_s = 0.0 if force else policy.drain_s if drain_s is None else drain_s
    limit_s = drain_s + policy.grace_s + policy.kill_s + 5
    if waiting and supervisor is not None and not wait_gone(supervisor, policy.grace_s):
        waiting(drain_s)
    if supervisor is not None and not wait_gone(supervisor, limit_s):
        raise Glm53Error(
            f"{instance.name!r} is still stopping after {limit_s:.0f} s",
            hint=f"glm53ctl down{instance.option} --force",
        )
    _check_nothing_left(instance)
    return True


def _check_nothing_left(instance: Instance) -> None:
    """End what left the server's session. Raises Glm53Error naming what even SIGKILL does not end.

    Under the lock: a server that another command starts meanwhile is no stray.
    """
    lock_fd = try_lock(instance.lock_path) if instance.folder.is_dir() else None
    if lock_fd is None:
        return
    try:
        left = owned.end_strays(instance.folder, limit_s=_STRAY_S)
    finally:
        instance.lock_path.unlink(missing_ok=True)
        os.close(lock_fd)
    if left:
        pids = ", ".join(str(item.pid) for item in left)
        raise Glm53Error(
            f"the supervisor of {instance.name!r} has ended, but pid {pids} of its server has not",
            hint=f"it may hold VRAM; one in state D waits for the driver: "
            f"ps -o pid,stat,wchan:20,cmd -p {pids.replace(' ', '')}",
        )


def _kill_supervisor(instance: Instance) -> bool:
    supervisor = holder(instance)
    if supervisor is not None:
        with suppress(ProcessLookupError):
            os.kill(supervisor.pid, signal.SIGKILL)
        wait_gone(supervisor, ANSWER_S)
    elif not _let_go(instance):
        raise Conflict(
            f"the lock of {instance.name!r} is held by a process that left no record",
            hint=f"find it with: fuser {instance.lock_path}",
        )
    if instance.folder.is_dir():
        _clear_stale(instance)
    _check_nothing_left(instance)
    return True


def _let_go(instance: Instance) -> bool:
    """True once nobody holds the lock: a supervisor at its end holds it a moment longer than its record."""
    deadline = time.monotonic() + _LOCK_RETRY_S
    while is_locked(instance.lock_path):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def wait_gone(process: Identity, limit_s: float) -> bool:
    """Wait for a process that is not our child to end; True when it has."""
    deadline = time.monotonic() + limit_s
    while process.alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
