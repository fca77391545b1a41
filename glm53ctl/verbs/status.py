"""`glm53ctl status`: is it serving, since when, how fast, and what went wrong last."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glm53ctl.verbs import options

if TYPE_CHECKING:
    from glm53ctl.supervisor.state import Instance

_SAMPLE_S = 0.5


def status(
    *,
    instance: options.InstanceOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep showing it until Ctrl-C.")
    ] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.2, metavar="SECONDS", help="Pace of --watch.")
    ] = 2.0,
    json_: options.JsonOption = False,
) -> None:
    """Show the state of the server. Exit code 0 running, 3 not running, 9 stalled or given up.

    Examples:

      glm53ctl status

      glm53ctl status --watch

      glm53ctl status --json
    """
    from glm53ctl.verbs.operate import named_instance

    found = named_instance(instance)
    if watch:
        _watch(found, every, as_json=json_)
        return
    code = _once(found, as_json=json_)
    if code:
        raise typer.Exit(code)


def _once(instance: Instance, *, as_json: bool) -> int:
    from glm53ctl import render, status_view

    record = _record(instance)
    if record is None:
        record = _never_started(instance)
    stats = _stats(instance, record)
    rate = None
    if stats is not None and stats.get("running"):
        time.sleep(_SAMPLE_S)
        before, stats = stats, _stats(instance, record)
        rate = status_view.tokens_per_s(before, stats)
    if as_json:
        render.emit_json(status_view.document(record, stats, rate))
    else:
        for line in status_view.status_lines(record, stats, rate, render.look()):
            render.emit(line)
    return status_view.exit_code(record)


def _watch(instance: Instance, every_s: float, *, as_json: bool) -> None:
    """Refresh until interrupted: redrawn on a terminal, one line (or document) each elsewhere."""
    import json

    from glm53ctl import render, status_view

    look = render.look()
    before: dict[str, Any] | None = None
    drawn = 0
    while True:
        record = _record(instance) or _never_started(instance)
        stats = _stats(instance, record)
        rate = status_view.tokens_per_s(before, stats)
        before = stats
        if as_json:
            render.emit(json.dumps(status_view.document(record, stats, rate)))
        elif look.live:
            lines = list(status_view.status_lines(record, stats, rate, look))
            render.emit("\x1b[F\x1b[2K" * drawn + "\n".join(lines))
            drawn = len(lines)
        else:
            now = status_view.now_words(stats, rate) if stats else "no /stats"
            stamp = time.strftime("%H:%M:%S")
            render.emit(f"{stamp}  {status_view.headline(record, look)}  {now}")
        time.sleep(every_s)


def _record(instance: Instance) -> dict[str, Any] | None:
    from glm53ctl import client

    return client.current(instance)[0]


def _stats(instance: Instance, record: dict[str, Any]) -> dict[str, Any] | None:
    from glm53ctl import status_view
    from glm53ctl.plan import read_plan
    from glm53ctl.supervisor.access import auth_headers

    if record["phase"] != "ready":
        return None
    return status_view.fetch_stats(record, auth_headers(read_plan(instance.plan_path)))


def _never_started(instance: Instance) -> dict[str, Any]:
    return {
        "instance": instance.name,
        "phase": "stopped",
        "health": None,
        "health_words": None,
        "retry_in_s": None,
        "last_failure": None,
        "phase_s": 0.0,
        "url": None,
        "mode": None,
        "restarts": 0,
    }
