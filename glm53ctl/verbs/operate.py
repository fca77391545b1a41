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


def named_instance(name: str | None, *, quiet: bool = False) -> Instance:
    """The instance of a flag, or else of the settings.

    Settings that cannot be read are a warning (`quiet`: not even that): a server that runs must be
    seen and stopped all the same.
    """
    from glm53ctl import profile, render, starting
    from glm53ctl.env import Environ

    environ = Environ.current()
    found = profile.load_anyway({"instance": name}, environ=environ)
    if found.problem and not quiet:
        render.warn(f"{found.problem.message}; going on without these settings")
        if found.problem.hint:
            render.say(f"  hint  {found.problem.hint}")
    return starting.find_instance(profile.paths_for(found, environ), found.settings.instance)


def say_waiting(instance: Instance, drain_s: float) -> None:
    """Why a stop takes long, and how to force it."""
    from glm53ctl import render

    streams = f": open streams get up to {drain_s:.0f} s to end" if drain_s else ""
    render.say(f"still stopping{streams} (now: glm53ctl down{instance.option} --force)")


def wait_visibly(instance: Instance, *, ours: bool, quiet: bool = False) -> dict[str, Any]:
    """Show the start until it serves. Ctrl-C stops what we started, and only that."""
    from glm53ctl import client, render, starting
    from glm53ctl.errors import StartFailed
    from glm53ctl.start_view import StartView
    from glm53ctl.supervisor import logs

    view = StartView()
    try:
        return starting.wait_ready(instance, (lambda _: None) if quiet else view)
    except KeyboardInterrupt:
        view.close()
        if ours:
            client.stop(instance, 0.0)
            render.say("stopped, nothing left running")
        else:
            render.say(f"it goes on starting: glm53ctl status{instance.option} --watch")
        raise
    except StartFailed:
        view.close()
        for line in logs.tail(instance.log_path, _TAIL_LINES):
            render.say(f"  | {line}")
        raise
    finally:
        view.close()
