"""`up --runtime docker`: the plan's server in our container."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glm53ctl.choose import Situation
    from glm53ctl.plan import Plan
    from glm53ctl.runtime import Runtime


def serves_in_docker(situation: Situation, plan: Plan, asked: Runtime, style: str) -> bool:
    """Start the plan in a container where the runtime says so, and wait for it; else False.

    Raises Blocked when neither is possible, and what a failed start raises.
    """
    from glm53ctl import container_run, render, runtime
    from glm53ctl.emit.deployment import deployment
    from glm53ctl.probes.system import this_system

    native = runtime.native_problem(plan)
    if asked is not runtime.Runtime.DOCKER and native is None:
        return False  # docker is asked only when it matters: that takes a second
    system = this_system(situation.environ)
    made = deployment(situation, plan, system, command="glm53ctl", image=None)
    container = runtime.container_problem(system, made.image, gpu=plan.gpu is not None)
    place = runtime.choose(asked, native=native, container=container)
    render.say(f" docker {made.image} as {made.name} ({place.why})")
    fresh = container_run.start(made, system)
    container_run.wait_ready(made, plan.url, system, render.say)
    match style:
        case "json":
            body = {"ok": True, "already_up": not fresh, "url": plan.url, "container": made.name}
            render.emit_json({"schema": "glm53ctl.up/1", "runtime": "docker", **body})
        case "url":
            render.emit(f"{plan.url}/v1")
        case _:
            word = "ready" if fresh else "already up"
            render.emit(f"{word}  {plan.url}/v1   container {made.name}")
            render.emit(f"key    docker exec {made.name} cat /glm53/state/default/api-key")
            render.emit(f"next   docker logs -f {made.name} · docker stop {made.name}")
    return True
