"""`python -m glm53ctl.supervisor`: the detached process `glm53ctl up` starts. Not for hands.

The caller has taken the lock and bound the control socket and passes both as descriptors, so there is
no moment at which an instance is running but unlocked, or locked but silent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

from glm53ctl import in_use
from glm53ctl.env import Environ
from glm53ctl.plan import read_plan
from glm53ctl.supervisor import logs
from glm53ctl.supervisor.lifecycle import Policy
from glm53ctl.supervisor.loop import Supervisor
from glm53ctl.supervisor.state import Instance
from glm53ctl.supervisor.watchdog import policy_for


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="glm53ctl.supervisor")
    parser.add_argument("--instance", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--lock-fd", type=int, required=True)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--policy", type=json.loads, default={})
    given = parser.parse_args(argv)
    os.set_inheritable(given.lock_fd, False)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closed terminal is no reason to stop
    instance = Instance(given.instance, given.folder, given.socket)
    plan = read_plan(instance.plan_path)
    policy = policy_for(plan.mode, Policy(**given.policy))
    listener = socket.socket(fileno=given.control_fd)
    if _detach():
        return 0
    supervisor = Supervisor(instance, plan, policy, Environ.current().values)
    logs.note(instance.log_path, f"start, plan {plan.fingerprint()}, {plan.engine} on {plan.url}")
    with in_use.held(Path(plan.model.path)):
        code = asyncio.run(supervisor.run(listener))
    logs.note(instance.log_path, f"end, exit code {code}")
    instance.socket_path.unlink(missing_ok=True)
    instance.lock_path.unlink(missing_ok=True)  # the kernel drops the lock itself when we exit
    return code


def _detach() -> bool:
    """Go on in a process of our own session; True in the one the caller waits for, which ends.

    The caller has then seen that everything was imported and read, and has nothing left to reap.
    """
    if os.fork():
        return True
    os.setsid()
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
