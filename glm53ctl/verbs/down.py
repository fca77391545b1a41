"""`glm53ctl down`: stop the server; nothing of it is left afterwards."""

from __future__ import annotations

from typing import Annotated

import typer

from glm53ctl.verbs import operate, options


def down(
    *,
    instance: options.InstanceOption = None,
    drain: operate.DrainOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Do not wait for streams or for a hung supervisor.")
    ] = False,
    json_: options.JsonOption = False,
) -> None:
    """Stop the server: let open streams end, then its whole process group. Calm when there is none.

    Examples:

      glm53ctl down

      glm53ctl down --drain 5
    """
    import time

    from glm53ctl import client, render

    found = operate.named_instance(instance)
    since = time.monotonic()
    stopped = client.stop(
        found, drain, force=force, waiting=lambda drain_s: operate.say_waiting(found, drain_s)
    )
    took_s = round(time.monotonic() - since, 1)
    if json_:
        body = {"ok": True, "instance": found.name, "was_running": stopped, "took_s": took_s}
        render.emit_json({"schema": "glm53ctl.down/1", **body})
    else:
        end = f"stopped after {took_s} s" if stopped else "was not running"
        render.emit(f"{found.name}: {end}")
