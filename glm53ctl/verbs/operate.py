"""What the verbs on instances share: which instance is meant, and how a start is watched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from glm53ctl.supervisor.state import Instance

_TAIL_LINES = 20
DrainOption = Annotated[
    float | None,
    typer.Option("--drain", min=0, metavar="SECONDS", help="Time open streams get to end (30)."),
]


def named_instance(name: str | None) -> Instance:
    """The instance of a flag, or else of the settings."""
    from glm53ctl import profile, starting
    from glm53ctl.env import Environ

    environ = Environ.current()
    found = profile.load({"instance": name}, environ=environ)
    return starting.find_instance(profile.paths_for(found, environ), found.settings.instance)


def wait_visibly(instance: Instance, *, ours: bool) -> dict[str, Any]:
    """Show the start until it serves. Ctrl-C stops what we started, and only that."""
    from glm53ctl import client, render, starting
    from glm53ctl.errors import StartFailed
    from glm53ctl.start_view import StartView
    from glm53ctl.supervisor import logs

    view = StartView()
    try:
        return starting.wait_ready(instance, view)
    except KeyboardInterrupt:
        if ours:
            client.stop(instance, 0.0)
        raise
    except StartFailed:
        view.close()
        for line in logs.tail(instance.log_path, _TAIL_LINES):
            render.say(f"  | {line}")
        raise
    finally:
        view.close()
