"""One server process: started in its own session, watched by pidfd, signalled and reaped as a group.

Nothing here decides anything. The child asks the kernel to kill it when its parent dies; that is
tied to the parent's thread, so `Child.start` must be called from the main thread.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from glm53ctl.plan import Plan
from glm53ctl.supervisor import logs, owned
from glm53ctl.supervisor.ready import ReadyPipe
from glm53ctl.supervisor.state import Identity, Instance

# The server reads no environment, and has no use for secrets.
_NOT_INHERITED = ("GLM53_", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_FIXED = {
    "PYTHONUNBUFFERED": "1",  # or the last lines before a crash are lost
    "PYTHONUTF8": "1",
    "HF_HUB_OFFLINE": "1",  # the server serves files that are there; it downloads nothing
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}


def child_environment(inherited: Mapping[str, str], plan: Plan) -> dict[str, str]:
    """What a server process sees: the caller's environment without our names and secrets, then the
    plan's `child_env`, which libraries must see before they are imported.
    """
    kept = {name: value for name, value in inherited.items() if not name.startswith(_NOT_INHERITED)}
    return kept | _FIXED | dict(plan.child_env)


def server_command(plan_path: Path, *options: str) -> list[str]:
    """argv of a server process. `-P` keeps the working directory off its import path."""
    return [sys.executable, "-P", "-m", "glm53_server", "--plan", str(plan_path), *options]


@dataclass(slots=True)
class Child:
    """A running server process. Owns `pidfd` and `pipe` until `reap`."""

    number: int
    process: subprocess.Popen[bytes]
    pidfd: int
    pipe: ReadyPipe
    identity: Identity | None

    @classmethod
    def start(
        cls,
        number: int,
        instance: Instance,
        *,
        environment: Mapping[str, str],
        drain_s: float,
    ) -> Child:
        """Spawn the server. Raises OSError when the kernel refuses."""
        read_fd, write_fd = os.pipe()
        try:
            log_fd = _log_or_null(instance.log_path)
            try:
                process = subprocess.Popen(
                    server_command(
                        instance.plan_path,
                        *("--ready-fd", str(write_fd)),
                        *("--parent-pid", str(os.getpid())),
                        *("--log-file", str(instance.log_path)),
                        *("--drain-s", str(drain_s)),
                    ),
                    stdin=subprocess.DEVNULL,
                    stdout=log_fd,
                    stderr=log_fd,
                    env={**environment, **owned.mark(instance.folder)},
                    cwd=instance.folder,
                    pass_fds=(write_fd,),
                    start_new_session=True,
                )
            finally:
                os.close(log_fd)
        except OSError:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError:
            process.kill()
            process.wait()
            os.close(read_fd)
            raise
        identity = Identity.of(process.pid)
        return cls(number, process, pidfd, ReadyPipe(read_fd), identity)

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the child's whole process group. Nothing happens once all of it is gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def signal(self, number: signal.Signals) -> None:
        """Signal the child alone."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def reap(self) -> int:
        """Collect a child that has exited; what it left of its group dies first, while its pid is
        still taken and cannot be somebody else's. Returns the code as Popen does (negative: signal).
        """
        self.signal_group(signal.SIGKILL)
        code = self.process.wait()
        os.close(self.pidfd)
        return code


def _log_or_null(path: Path) -> int:
    """A server without a log is better than no server, when the disk is full."""
    try:
        return logs.open_append(path)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
