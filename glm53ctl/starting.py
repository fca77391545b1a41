"""What `up` and `restart` share: agree with a running instance, wait for readiness, explain a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from glm53ctl import client, ports
from glm53ctl.errors import (
    ArtifactError,
    Blocked,
    Conflict,
    Glm53Error,
    StartFailed,
    Unhealthy,
    UsageError,
)
from glm53ctl.paths import Paths
from glm53ctl.plan import Plan, read_plan
from glm53ctl.profile import Profile
from glm53ctl.supervisor.classify import Failure
from glm53ctl.supervisor.state import Instance, read_wishes

Record = client.Record
_ERRORS = (UsageError, Blocked, Conflict, ArtifactError, StartFailed, Unhealthy)
_NOT_WISHES = {"instance", "doctor.ignore", "download.mirrors", "paths.root"}


def find_instance(paths: Paths, name: str) -> Instance:
    """The files of a named instance. Raises UsageError for a bad name."""
    return Instance.locate(name, folder=paths.instance_dir(name), runtime_dir=paths.runtime_dir)


def wishes(profile: Profile) -> dict[str, str]:
    """What the user asked for, by setting.

    Two `up` with the same wishes want the same server. Their plans may differ all the same: the
    second is made while the first server holds the memory.
    """
    from glm53ctl.env import rows

    settings = profile.settings
    return {
        row.key: str(getattr(settings, row.field_name))
        for row in rows()
        if row.key not in _NOT_WISHES
    }


def agree(instance: Instance, wished: dict[str, str], choose: Callable[[], Plan]) -> None:
    """Raises Conflict, naming the differences, when the running instance is not the wished one.

    `choose` makes the plan for the machine without that instance; its NoFit is passed on, because
    nothing should be stopped for a plan that cannot run.
    """
    if read_wishes(instance) == wished:
        return
    running = running_plan(instance)
    plan = choose()
    if plan.fingerprint() == running.fingerprint():
        return
    found = plan_differences(running, plan)
    raise Conflict(
        f"{instance.name!r} is running with a different plan ({', '.join(found)})",
        hint="the same command with --replace stops it (open streams get 30 s) and "
        "starts the new plan\nglm53ctl up --instance NAME --port N runs a second server beside it",
    )


def running_plan(instance: Instance) -> Plan:
    """The plan of a running instance. Raises Conflict when its files were removed or damaged."""
    try:
        return read_plan(instance.plan_path)
    except UsageError as err:
        raise Conflict(
            f"{instance.name!r} is running, but {err.message}",
            hint=f"stop it: glm53ctl down{instance.option}\n"
            f"and start it again: glm53ctl up{instance.option}",
        ) from err


def plan_differences(old: Plan, new: Plan) -> list[str]:
    """The fields in which two plans would run different servers."""
    return differences(_flat(_running_part(old)), _flat(_running_part(new)))


def _running_part(plan: Plan) -> dict[str, Any]:
    body = asdict(plan)
    for explanation in ("choices", "budgets"):
        body.pop(explanation)
    return body


def _flat(body: dict[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in body.items():
        if isinstance(value, dict):
            found |= _flat(cast("dict[str, Any]", value), f"{prefix}{key}.")
        else:
            found[prefix + key] = "(not set)" if value is None else str(value)
    return found


def differences(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """`key old → new` for every key that differs; "-" stands for a missing one."""
    keys = [*new, *(key for key in old if key not in new)]
    return [
        f"{key} {old.get(key, '-')} → {new.get(key, '-')}"
        for key in keys
        if old.get(key) != new.get(key)
    ]


def check_startable(plan: Plan) -> None:
    """Raises for what would fail in the server within a second anyway, with better words."""
    if plan.model.load_format == "checkpoint" and not Path(plan.model.path).is_dir():
        raise ArtifactError(
            f"the checkpoint {plan.model.path} is not there",
            hint="download it: glm53ctl models pull\n"
            "or serve the bundled one: glm53ctl up --model tiny",
        )
    ports.check_address(plan.listen)


def wait_ready(instance: Instance, on_record: Callable[[Record], None]) -> Record:
    """Follow a start until the instance serves; returns the record. Raises what went wrong."""
    record: Record = {}
    for record in client.watch(instance):
        on_record(record)
        if record["phase"] == "ready":
            return record
        if record["exit_code"] is not None:
            raise start_error(instance, record)
    raise StartFailed(
        "the supervisor ended unexpectedly", hint=f"its output is in {instance.log_path}"
    )


def start_error(instance: Instance, record: Record) -> Glm53Error:
    """The error of an instance that ended instead of serving."""
    if record["last_failure"] is None or record["exit_code"] == 0:
        return StartFailed(f"{instance.name!r} was stopped while it started")
    failure = Failure.from_dict(record["last_failure"])
    if failure.kind == "port taken":
        return ports.taken(read_plan(instance.plan_path).listen)
    proof = f" (proof: {failure.proof})" if failure.proof else ""
    kind = next((kind for kind in _ERRORS if kind.exit_code == failure.exit_code), Glm53Error)
    return kind(failure.summary + proof, hint=failure.hint, error_id=failure.error_id)
