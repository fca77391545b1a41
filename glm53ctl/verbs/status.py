"""`glm53ctl status`: is it serving, since when, how fast, and what went wrong last."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glm53ctl.verbs import options

if TYPE_CHECKING:
    from glm53ctl.hardware import Measured
    from glm53ctl.host_use import HostUse
    from glm53ctl.render import Look
    from glm53ctl.supervisor.state import Instance
    from glm53ctl.traffic import Traffic

_UP_AND_CLEAR = "\x1b[F\x1b[2K"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"  # a wrapped line would be two to go up over
_SAMPLE_S = 1.0  # the tiers are counted every half second


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

    view = _look_at(instance)
    if view.stats is not None and view.stats.get("running"):
        ceilings = _ceilings(instance)  # takes about as long as a sample
        time.sleep(_SAMPLE_S)
        view = _look_at(instance, view.stats, ceilings)
    if as_json:
        render.emit_json(view.document())
    else:
        for line in view.lines(render.look()):
            render.emit(line)
    return status_view.exit_code(view.record)


def _watch(instance: Instance, every_s: float, *, as_json: bool) -> None:
    """Refresh until interrupted: redrawn on a terminal, one line (or document) each elsewhere."""
    import json

    from glm53ctl import render, status_view

    look = render.look()
    stats: dict[str, Any] | None = None
    ceilings: Measured | None = None
    drawn = 0
    while True:
        if ceilings is None and stats is not None:
            ceilings = _ceilings(instance)
        view = _look_at(instance, stats, ceilings)
        stats = view.stats
        if as_json:
            render.emit(json.dumps(view.document()))
        elif look.live:
            lines = [*view.lines(look), *_events(instance)]
            render.emit(_UP_AND_CLEAR * drawn + _NO_WRAP + "\n".join(lines) + _WRAP)
            drawn = len(lines)
        else:
            now = status_view.now_words(stats, view.rate) if stats else "no /stats"
            stamp = time.strftime("%H:%M:%S")
            render.emit(f"{stamp}  {status_view.headline(view.record, look)}  {now}")
        time.sleep(every_s)


def _events(instance: Instance) -> list[str]:
    """The supervisor's last lines, under the live view."""
    from glm53ctl.supervisor import logs

    told = [line for line in logs.tail(instance.log_path, 200) if " supervisor: " in line]
    return [f"  | {line[11:19]}{line.partition(' supervisor')[2][:100]}" for line in told[-3:]]


@dataclass(frozen=True, slots=True)
class _View:
    """One look at an instance."""

    record: dict[str, Any]
    stats: dict[str, Any] | None
    rate: float | None
    use: HostUse | None
    exposure: str | None = None
    traffic: Traffic | None = None
    ceilings: Measured | None = None

    def lines(self, look: Look) -> Iterator[str]:
        from glm53ctl import host_use, status_view, traffic
        from glm53ctl.hardware import Measured

        yield from status_view.status_lines(self.record, self.stats, self.rate, look)
        if self.traffic is not None:
            yield traffic.line(self.traffic, self.ceilings or Measured())
        if self.exposure is not None:
            yield f"  listens  {self.exposure}"
        if self.use is not None:
            yield from host_use.lines(self.use)

    def document(self) -> dict[str, Any]:
        from glm53ctl import status_view

        host = asdict(self.use) if self.use else None
        moved = asdict(self.traffic) if self.traffic else None
        ceilings = asdict(self.ceilings) if self.ceilings else None
        body = status_view.document(self.record, self.stats, self.rate)
        return {**body, "host": host, "traffic": moved, "ceilings": ceilings}


def _ceilings(instance: Instance) -> Measured:
    """What this machine was measured to move, by an earlier doctor, plan or bench."""
    from glm53ctl import known_rates, profile, starting
    from glm53ctl.env import Environ
    from glm53ctl.probes import machine
    from glm53ctl.probes.system import this_system

    planned, environ = starting.running_plan(instance).gpu, Environ.current()
    hardware = machine.probe(this_system(environ))
    gpu = next((gpu for gpu in hardware.gpus if planned and gpu.uuid == planned.uuid), None)
    folder = profile.paths_for(profile.load_anyway({}, environ=environ), environ).cache_dir
    return known_rates.recalled(hardware, gpu, folder, today=known_rates.utc_today()).measured


def _look_at(
    instance: Instance,
    before: dict[str, Any] | None = None,
    ceilings: Measured | None = None,
) -> _View:
    """Ask the supervisor, the server and the machine; `before` is an earlier /stats, for the rate."""
    from glm53ctl import client, host_use, starting, status_view, traffic
    from glm53ctl.env import Environ
    from glm53ctl.supervisor.access import auth_headers

    record, running = client.current(instance)
    if record is None and running:
        starting.running_plan(instance)  # raises: its files were removed under it
    record = record or _never_started(instance)
    if record["phase"] != "ready":
        return _View(record, None, None, None)
    plan = starting.running_plan(instance)
    stats = status_view.fetch_stats(record, auth_headers(plan))
    use = host_use.read(record, plan, Environ.current())
    rate = status_view.tokens_per_s(before, stats)
    exposed, moved = status_view.exposure(plan.listen), traffic.between(before, stats)
    return _View(record, stats, rate, use, exposed, moved, ceilings)


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
