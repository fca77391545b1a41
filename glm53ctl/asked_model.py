"""Which model an instance was started for, so that doctor and report judge the machine for that one."""

from __future__ import annotations

from glm53ctl import client
from glm53ctl.errors import Glm53Error
from glm53ctl.plan import read_plan
from glm53ctl.supervisor.state import Instance, read_wishes


def asked_model(instance: Instance) -> str | None:
    """`--model` of the instance's last start, or else its directory; None without one."""
    try:
        plan = read_plan(instance.plan_path)
    except Glm53Error:
        return None
    if plan.model.load_format != "checkpoint":
        return None  # weights made in memory have no name
    return read_wishes(instance).get("model.name") or plan.model.path


def running_model(instance: Instance) -> str | None:
    """The same, while the instance runs."""
    try:
        running = client.is_running(instance)
    except Glm53Error:  # it does not answer: it runs
        running = True
    return asked_model(instance) if running else None
