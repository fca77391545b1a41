"""`glm53ctl report`: everything a bug report needs, without secrets, for you to look at and to send."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from glm53ctl.verbs import options


def report(
    *,
    instance: options.InstanceOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The archive to write.")
    ] = None,
    stdout: Annotated[
        bool, typer.Option("--stdout", help="Print the text and write no file.")
    ] = False,
    bench: Annotated[bool, typer.Option("--bench", help="Add the last bench result.")] = False,
    yes: options.YesOption = False,
    json_: options.JsonOption = False,
) -> None:
    """Collect versions, settings, doctor, plan, state and log of an instance. Nothing is sent.

    A terminal is asked before the archive is written, unless --yes or --output is given.

    Examples:

      glm53ctl report --stdout

      glm53ctl report --output report.tar.gz
    """
    from glm53ctl import profile, render
    from glm53ctl.env import Environ
    from glm53ctl.probes.system import this_system
    from glm53ctl.report.collect import collect
    from glm53ctl.report.document import markdown, write_archive
    from glm53ctl.verbs.operate import named_instance

    environ = Environ.current()
    found = named_instance(instance)
    paths = profile.paths_for(profile.load_anyway({}, environ=environ), environ)
    bundle = collect(
        found, environ, this_system(environ), state_dir=paths.state_dir, with_bench=bench
    )
    if json_:
        body = {"findings": bundle.findings, "skipped": bundle.skipped, "parts": bundle.parts}
        render.emit_json({"schema": "glm53ctl.report/1", "ok": True, **body})
        return
    if stdout:
        render.emit(markdown(bundle).rstrip("\n"))
        return
    name = f"glm53-report-{found.name}-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz"
    file = output or Path(name)
    for part in ("report.md", *bundle.parts):
        render.say(f"  {part}")
    asks = output is None and not yes and sys.stdin.isatty()
    if asks and not typer.confirm(f"write {file}?", err=True):
        raise typer.Abort
    write_archive(bundle, file)
    for text in bundle.findings:
        render.say(f"finding: {text}")
    render.emit(f"wrote  {file}   look at it before you send it")
