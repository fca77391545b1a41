"""`glm53ctl doctor`: what this machine can do, what is wrong with it, and how to fix it."""

from __future__ import annotations

from typing import Annotated

import typer

from glm53ctl.verbs import complete, options


def doctor(
    *,
    model: options.ModelOption = None,
    mode: options.ModeOption = None,
    profile: options.ProfileOption = None,
    gpu: options.GpuOption = None,
    host: options.HostOption = None,
    port: options.PortOption = None,
    sets: options.SetOption = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", autocompletion=complete.checks, metavar="ID", help="Run only these checks."
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            "--skip", autocompletion=complete.checks, metavar="ID", help="Leave these checks out."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Read only; measure nothing.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 5 when there is advice.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the checks and end.")] = False,
    sudo: Annotated[
        bool, typer.Option("--print-sudo-cmd", help="Print the fixes that need root, only those.")
    ] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show all evidence.")] = False,
    json_: options.JsonOption = False,
) -> None:
    """Check this machine, with a fix for whatever is wrong.

    One line per check, for the model given, or that of the running instance. Nothing is changed, installed or downloaded; measured rates are kept in
    the cache for `plan` and `up`.

    Examples:

      glm53ctl doctor

      glm53ctl doctor --model tiny --quick

      glm53ctl doctor --only GPU-004 -v
    """
    from glm53ctl import choose, doctor_text, render
    from glm53ctl import doctor as examiner
    from glm53ctl.env import Environ
    from glm53ctl.probes.system import this_system

    if list_:
        rows = [(spec.id, spec.area, spec.title) for spec in examiner.SPECS]
        render.emit("\n".join(render.columns(rows, indent="")))
        return
    busy = not quick and _is_generating()
    served = None if model or profile or sets else _running_model()
    wanted = choose.PlanOptions(
        mode=mode,
        model=model or served,
        model_of="the running server" if served else None,
        profile=profile,
        gpu=gpu,
        host=host,
        port=port,
        sets=sets,
    )
    report = examiner.examine(
        wanted,
        this_system(Environ.current()),
        only=only or (),
        skip=skip or (),
        quick=quick or busy,
    )
    if sudo:
        render.emit("\n".join(examiner.sudo_commands(report)))
    elif json_:
        render.emit_json(examiner.document(report, strict=strict))
    else:
        for line in doctor_text.lines(report, render.look(), verbose=verbose):
            render.emit(line)
    raise typer.Exit(report.exit_code(strict=strict))


def _is_generating() -> bool:
    """Whether the user's server works right now: measuring would slow it down, and measure too little."""
    from glm53ctl import client, render, starting, status_view
    from glm53ctl.errors import Glm53Error
    from glm53ctl.supervisor.access import auth_headers
    from glm53ctl.verbs.operate import named_instance

    instance = named_instance(None, quiet=True)
    try:
        record, running = client.current(instance)
        if record is None or not running or record["phase"] != "ready":
            return False
        headers = auth_headers(starting.running_plan(instance))
        stats = status_view.fetch_stats(record, headers, timeout_s=1.0)
    except Glm53Error:
        return False  # whatever is wrong with it, the checks go on
    if not stats or not stats.get("running"):
        return False
    render.say(f"instance {instance.name!r} is generating: nothing is measured beside it")
    return True


def _running_model() -> str | None:
    """The model of the running instance, said on stderr: the checks are about it."""
    from glm53ctl import render
    from glm53ctl.asked_model import running_model
    from glm53ctl.verbs.operate import named_instance

    instance = named_instance(None, quiet=True)
    found = running_model(instance)
    if found is not None:
        render.say(f"for the model of the running instance {instance.name!r}: {found}")
    return found
