"""`python -m glm53_server --plan FILE`: one server process. Reads a plan and nothing else.

Exit codes are `ChildExit`. The order matters: what fails fast comes first (plan, address, CPUs), then
the load, then listening; "ready" is said only when a request would be answered.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import os
import signal
import socket
import sys
from pathlib import Path

from glm53_server.launch import LaunchError, die_with_parent, listen, load_engine, set_affinity
from glm53_server.loading import LoadingPage, answering
from glm53_server.readiness import Readiness
from glm53ctl.errors import Glm53Error
from glm53ctl.plan import Plan, read_plan


def main(argv: list[str]) -> int:
    """Run until SIGTERM or a failure; returns the exit code."""
    given = _arguments(argv)
    if given.parent_pid is not None and not die_with_parent(given.parent_pid):
        return 0
    faulthandler.enable()  # a crash in native code leaves its Python stack in the log
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    if given.log_file is not None:
        signal.signal(signal.SIGHUP, lambda *_: _reopen(given.log_file))
    readiness = Readiness(given.ready_fd)
    try:
        return _serve(given.plan, given.drain_s, readiness)
    except (LaunchError, Glm53Error) as err:
        failure = err if isinstance(err, LaunchError) else LaunchError.of(err)
        readiness.failed(failure.error_id, failure.message, failure.hint)
        _say(failure)
        return failure.code


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="glm53_server", description=__doc__)
    parser.add_argument("--plan", type=Path, required=True, help="the plan, a JSON file")
    parser.add_argument("--ready-fd", type=int, help="descriptor for progress and readiness lines")
    parser.add_argument("--parent-pid", type=int, help="die when this process, our parent, does")
    parser.add_argument("--log-file", type=Path, help="reopened for stdout and stderr on SIGHUP")
    parser.add_argument("--drain-s", type=float, default=30.0, help="time open streams get to end")
    return parser.parse_args(argv)


def _serve(plan_path: Path, drain_s: float, readiness: Readiness) -> int:
    plan = read_plan(plan_path)
    listener = listen(plan.listen)
    set_affinity(plan.cpu.cpus)
    page = LoadingPage()

    def progress(phase: str, done: int, total: int) -> None:
        readiness.progress(phase, done, total)
        page.progress(phase, done, total)

    with answering(listener, page):
        progress("import", 0, 0)
        from glm53_server.serving import serve  # FastAPI, uvicorn: not before the cheap checks

        engine = load_engine(plan, progress)
    url = _url(plan, listener)
    return asyncio.run(serve(engine, plan, listener, drain_s, lambda: readiness.ready(url)))


def _url(plan: Plan, listener: socket.socket) -> str:
    """The plan's URL, with the real port where the plan left the choice to the kernel."""
    if plan.listen.port:
        return plan.url
    return f"{plan.url.rpartition(':')[0]}:{listener.getsockname()[1]}"


def _reopen(path: Path) -> None:
    """Point stdout and stderr at a new file: the supervisor has renamed the old one."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError:
        return  # the renamed file still takes our lines
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def _say(err: LaunchError) -> None:
    hint = f" ({err.hint})" if err.hint else ""
    sys.stderr.write(f"error[{err.error_id}]: {err.message}{hint}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
