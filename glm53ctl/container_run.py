"""A server in our container: started with the very command of `emit docker-run`, and waited for."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable

from glm53ctl.emit import containers
from glm53ctl.emit.deployment import HEALTH_PATH, Deployment
from glm53ctl.errors import Conflict, StartFailed
from glm53ctl.probes.system import System

_RUN_S = 60.0
_ASK_S = 5.0
_PERIOD_S = 0.5


def start(made: Deployment, system: System) -> bool:
    """Start the container; False when it runs already. Raises Conflict for a stopped one of this name."""
    state = _state(made, system)
    if state == "running":
        return False
    if state is not None:
        raise Conflict(
            f"there is a container {made.name} already, and it is {state}",
            hint=f"docker start {made.name}   or   docker rm {made.name}",
        )
    command = shlex.split(containers.docker_run(made).replace("\\\n", " "))
    done = system.run(command, deadline_s=_RUN_S)
    if not done.ok:
        raise StartFailed(
            f"docker run failed: {done.err.strip() or done.problem}",
            hint="glm53ctl emit docker-run shows the command",
        )
    return True


def wait_ready(made: Deployment, url: str, system: System, say: Callable[[str], None]) -> None:
    """Until /health answers. Raises StartFailed, with its last lines, when the container ends."""
    import httpx

    begun = said = time.monotonic()
    with httpx.Client(trust_env=False, timeout=_ASK_S) as client:
        while True:
            try:
                if client.get(url + HEALTH_PATH).status_code == 200:
                    return
            except httpx.HTTPError:
                pass  # not listening yet; whether it ever will, the container's state tells
            state = _state(made, system)
            if state != "running":
                tail = system.run(["docker", "logs", "--tail", "20", made.name], deadline_s=_ASK_S)
                for line in (tail.out + tail.err).splitlines():
                    say(f"  | {line}")
                raise StartFailed(
                    f"the container {made.name} is {state or 'gone'}, it never served",
                    hint=f"docker logs {made.name}",
                )
            now = time.monotonic()
            if now - said > 10:
                said = now
                say(f" starting  {now - begun:.0f} s   docker logs -f {made.name}")
            time.sleep(_PERIOD_S)


def _state(made: Deployment, system: System) -> str | None:
    """running, exited, ...; None when there is no container of this name."""
    ask = ["docker", "inspect", "--format", "{{.State.Status}}", made.name]
    found = system.run(ask, deadline_s=_ASK_S)
    return found.out.strip() or None if found.ok else None
