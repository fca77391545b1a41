"""`glm53ctl upgrade`: another version beside this one, tried, and only then switched to."""

from __future__ import annotations

from typing import Annotated

import typer

from glm53ctl.verbs import options


def upgrade(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[SOURCE]", help="A wheel, a checkout, or a requirement for pip."),
    ] = None,
    *,
    extra: Annotated[
        str | None, typer.Option("--extra", metavar="NAMES", help="cuda,cpu; as now if not given.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")] = False,
    json_: options.JsonOption = False,
) -> None:
    """Install another version, try it, then switch to it. `glm53ctl rollback` goes back.

    For installations of scripts/install.sh. The new version serves the bundled model once before the
    switch; when it fails, nothing is changed. Running servers go on with the version they have.

    Examples:

      glm53ctl upgrade --dry-run

      glm53ctl upgrade glm53ctl-0.2.0-py3-none-linux_x86_64.whl
    """
    import shutil
    import sys
    from datetime import UTC, datetime
    from pathlib import Path

    from glm53ctl import installed, render
    from glm53ctl.env import Environ
    from glm53ctl.probes.system import System

    environ = Environ.current()
    found = installed.find(environ, Path(sys.prefix))
    wanted = installed.extras(System(environ)) if extra is None else extra
    requirement = installed.with_extras(installed.source_of(source), wanted)
    folder = found.beside(datetime.now(UTC).strftime("%Y%m%dT%H%M%S"))
    render.say(f" stage   {requirement} into {folder}")
    if dry_run and json_:
        body = {"requirement": requirement, "folder": str(folder), "previous": str(found.current)}
        render.emit_json({"schema": "glm53ctl.upgrade/1", "ok": True, "dry_run": True, **body})
        return
    if dry_run:
        render.say(f" switch  {found.link} from {found.current}, once it has served tiny")
        return
    installed.stage(folder, requirement)
    try:
        version = installed.try_out(folder, environ, serve="cpu" in wanted)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    gone = installed.remove_unused(installed.switch(found, folder))
    for item in gone:
        render.say(f" remove  {item}")
    if json_:
        body = {"version": version, "folder": str(folder), "previous": str(found.current)}
        render.emit_json({"schema": "glm53ctl.upgrade/1", "ok": True, **body})
    else:
        render.emit(f"now {version}; before: {found.current}")
        render.say("running servers: glm53ctl down, then glm53ctl up · back: glm53ctl rollback")
