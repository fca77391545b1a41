"""`glm53ctl rollback`: back to the version before the last upgrade."""

from __future__ import annotations

from glm53ctl.verbs import options


def rollback(*, json_: options.JsonOption = False) -> None:
    """Switch back to the version before the last upgrade; once more switches forth again.

    Examples:

      glm53ctl rollback
    """
    import sys
    from pathlib import Path

    from glm53ctl import installed, render
    from glm53ctl.env import Environ
    from glm53ctl.errors import UsageError

    environ = Environ.current()
    found = installed.find(environ, Path(sys.prefix))
    if found.previous is None:
        raise UsageError(f"there is no version before {found.current}", hint="glm53ctl upgrade")
    version = installed.try_out(found.previous, environ, serve=False)
    now = installed.switch(found, found.previous)
    if json_:
        body = {"version": version, "folder": str(now.current), "previous": str(found.current)}
        render.emit_json({"schema": "glm53ctl.rollback/1", "ok": True, **body})
    else:
        render.emit(f"now {version}; before: {found.current}")
        render.say("running servers: glm53ctl down, then glm53ctl up")
