"""One server process in the foreground: signals are passed on, its exit code is translated."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from glm53ctl import in_use
from glm53ctl.env import Environ
from glm53ctl.plan import Plan
from glm53ctl.supervisor.child import child_environment, server_command
from glm53ctl.supervisor.classify import Ending, classify
from glm53ctl.supervisor.ready import Serving, parse


def run(plan: Plan, drain_s: float, on_ready: Callable[[str], None]) -> int:
    """Serve a plan until the server ends; returns the exit code of the verb.

    The server's output is ours. The plan file lives as long as the server.
    """
    with (
        in_use.held(Path(plan.model.path)),
        tempfile.TemporaryDirectory(prefix="glm53-") as folder,
    ):
        plan_path = Path(folder) / "plan.json"
        plan_path.write_text(plan.to_json(), encoding="utf-8")
        read_fd, write_fd = os.pipe()
        command = server_command(
            plan_path,
            *("--ready-fd", str(write_fd)),
            *("--parent-pid", str(os.getpid())),
            *("--drain-s", str(drain_s)),
        )
        environment = child_environment(Environ.current().values, plan)
        with subprocess.Popen(command, env=environment, pass_fds=(write_fd,)) as process:
            os.close(write_fd)

            def forward(number: int, _frame: FrameType | None) -> None:
                process.send_signal(number)

            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, forward)
            _announce(read_fd, on_ready)
            code = process.wait()
    stopped = code in {0, -signal.SIGTERM, -signal.SIGINT}
    return 0 if stopped else classify(Ending(code)).exit_code


def _announce(read_fd: int, on_ready: Callable[[str], None]) -> None:
    """Read the readiness pipe to its end, which comes with readiness or with the process."""
    with open(read_fd, "rb") as lines:
        for line in lines:
            message = parse(line)
            if isinstance(message, Serving):
                on_ready(message.url)
