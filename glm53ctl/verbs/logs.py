"""`glm53ctl logs`: what the server and its supervisor wrote."""

from __future__ import annotations

from typing import Annotated

import typer

from glm53ctl.verbs import options


def logs(
    *,
    instance: options.InstanceOption = None,
    lines: Annotated[
        int, typer.Option("-n", "--lines", min=0, metavar="N", help="How many of the last lines.")
    ] = 20,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Keep showing new lines until it stops.")
    ] = False,
) -> None:
    """Show the log of the server, of running and of stopped ones.

    Examples:

      glm53ctl logs -n 100

      glm53ctl logs -f
    """
    from glm53ctl import client, render
    from glm53ctl.errors import ArtifactError, NotRunning
    from glm53ctl.supervisor import logs as files
    from glm53ctl.verbs.operate import named_instance

    found = named_instance(instance)
    if not found.log_path.parent.is_dir():
        if client.is_running(found):
            raise ArtifactError(
                f"{found.log_path.parent} was removed, and {found.name!r} runs on without a log",
                hint=f"make a new one: glm53ctl down{found.option}, then glm53ctl up{found.option}",
            )
        raise NotRunning(f"{found.name!r} was never started", hint=f"glm53ctl up{found.option}")
    if not follow:
        for line in files.tail(found.log_path, lines):
            render.emit(line)
        return
    for line in files.follow(found.log_path, lines, until=lambda: not client.is_running(found)):
        render.emit(line)
