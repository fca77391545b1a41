"""`glm53ctl restart`: a new server process for the same plan."""

from __future__ import annotations

from glm53ctl.verbs import operate, options


def restart(
    *,
    instance: options.InstanceOption = None,
    drain: operate.DrainOption = None,
    json_: options.JsonOption = False,
) -> None:
    """Restart the server with the plan it has; one that has stopped starts with its last plan.

    Examples:

      glm53ctl restart

      glm53ctl restart --drain 0
    """
    from glm53ctl import client, render, starting
    from glm53ctl.errors import NotRunning
    from glm53ctl.plan import read_plan

    found = operate.named_instance(instance)
    if not found.plan_path.exists() and client.is_running(found):
        starting.running_plan(found)  # raises: the files of a running instance were removed
    if not found.plan_path.exists():
        raise NotRunning(f"{found.name!r} was never started", hint=f"glm53ctl up{found.option}")
    if client.answers(found):
        client.request(found, {"verb": "restart", "drain_s": drain})
    else:
        plan = read_plan(found.plan_path)
        client.stop(found, drain)  # one whose control socket is lost; calm when there is none
        starting.check_startable(plan)
        client.launch(found, plan)
    record = operate.wait_visibly(found, ours=False)
    if json_:
        render.emit_json({"schema": "glm53ctl.restart/1", "ok": True, **record})
    else:
        render.emit(f"ready  {record['url']}/v1   model {record['model']}")
