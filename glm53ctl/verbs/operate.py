"""What the verbs on a running instance share: which instance is meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from glm53ctl.supervisor.state import Instance

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
