"""`glm53ctl up`: plan, start under a supervisor, wait until it serves."""

from __future__ import annotations

import signal
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from glm53ctl.runtime import Runtime
from glm53ctl.verbs import in_docker, models, operate, options

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from glm53ctl.choose import Situation
    from glm53ctl.plan import Plan
    from glm53ctl.supervisor.state import Instance

Style = Literal["json", "url", "words"]


def up(
    *,
    mode: options.ModeOption = None,
    model: options.ModelOption = None,
    profile: options.ProfileOption = None,
    host: options.HostOption = None,
    port: options.PortOption = None,
    gpu: options.GpuOption = None,
    context_tokens: options.ContextOption = None,
    cache_tokens: options.CacheTokensOption = None,
    max_batch: options.MaxBatchOption = None,
    served_name: options.ServedNameOption = None,
    api_key_file: options.ApiKeyFileOption = None,
    engine: options.EngineOption = None,
    load_format: options.LoadFormatOption = None,
    instance: options.InstanceOption = None,
    sets: options.SetOption = None,
    yes: options.YesOption = False,
    offline: options.OfflineOption = False,
    runtime: Annotated[
        Runtime, typer.Option("--runtime", help="Where: auto takes docker if native cannot be.")
    ] = Runtime.AUTO,
    attach: Annotated[
        bool, typer.Option("--attach", help="Stay and show the log; Ctrl-C stops the server.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Stop a running server that has another plan.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and start nothing.")
    ] = False,
    json_: options.JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the URL only.")] = False,
) -> None:
    """Start the server and wait until it serves. Running already with the same plan: say so.

    Examples:

      glm53ctl up

      glm53ctl up --model tiny --port 8081 --attach

      glm53ctl up --mode exact --replace
    """
    from glm53ctl.choose import PlanOptions
    from glm53ctl.verbs import plan as plan_verb

    given: dict[str, Any] = {
        "mode": mode,
        "model": model,
        "profile": profile,
        "host": host,
        "port": port,
        "gpu": gpu,
        "context_tokens": context_tokens,
        "cache_tokens": cache_tokens,
        "max_batch": max_batch,
        "served_name": served_name,
        "api_key_file": api_key_file,
        "engine": engine,
        "load_format": load_format,
        "instance": instance,
        "sets": sets,
    }
    if dry_run:
        plan_verb.plan(**given, json_=json_)
        return
    style: Style = "json" if json_ else "url" if quiet else "words"
    start = models.Fetching(yes=yes, offline=offline), runtime
    term = _Term() if attach else None  # a container may be stopped while it starts
    try:
        code = _bring_up(PlanOptions(**given), *start, replace=replace, term=term, style=style)
    except _Terminated:
        return  # it was asked to end before it served, and did
    if code:
        raise typer.Exit(code)


def _bring_up(
    options: Any,
    fetch: models.Fetching,
    runtime: Runtime,
    *,
    replace: bool,
    term: _Term | None,
    style: Style,
) -> int:
    """Make it serve; with `term`, attach to it. Returns the exit code."""
    from glm53ctl import choose, claims, client, render, starting, successor, unused
    from glm53ctl.errors import Conflict

    situation = _survey(options)
    instance = starting.find_instance(situation.paths, situation.profile.settings.instance)
    wished = starting.wishes(situation.profile)
    already = client.is_running(instance)
    if already:
        later = successor.after_stop(situation, instance)
        try:
            starting.agree(instance, wished, lambda: choose.decide(later).chosen())
        except Conflict:
            if not replace:
                raise
            _make_room(instance, later, fetch)
            situation, already = choose.survey(options), False
    if not already:
        plan = choose.decide(situation).chosen()
        for warning in unused.unused(plan, situation.profile):
            render.warn(warning)
        if in_docker.serves_in_docker(situation, plan, runtime, style):
            return 0
        plan = models.plan_with_model(situation, options, fetch)
        with claims.turn(situation.paths.state_dir):
            if any(claims.others(situation.paths, instance.name)):
                plan = choose.choose_plan(options)  # one that started meanwhile has its claim
            _launch(instance, plan, wished, term, quiet=style == "url")
    record = operate.wait_visibly(instance, ours=not already, quiet=style == "url")
    if term is not None:
        return _attach(instance, lambda: _tell(instance, record, already, style))
    _tell(instance, record, already, style)
    return 0


def _survey(options: Any) -> Situation:
    """Machine and settings, with the warnings said; at boot after a wait for the driver."""
    from glm53ctl import choose, render

    situation = choose.survey(options)
    if _driver_came_late(situation):
        situation = choose.survey(options)
    for warning in situation.profile.warnings:
        render.warn(warning)
    return situation


def _driver_came_late(situation: Situation) -> bool:
    """Whether a GPU mode was possible at boot only after a wait; the machine is to be looked at again."""
    from glm53ctl import boot, render
    from glm53ctl.hardware import DriverState
    from glm53ctl.plan import Mode
    from glm53ctl.probes.system import this_system

    wanted = situation.profile.settings.mode is not Mode.CPU
    if not wanted or situation.hardware.driver.state is DriverState.OK:
        return False
    return boot.wait_for_driver(this_system(situation.environ), render.say)


def _make_room(instance: Instance, later: Situation, fetch: models.Fetching) -> None:
    """Stop the running server for its successor. What can be refused is refused before."""
    from glm53ctl import client, starting

    plan = models.downloaded(later, fetch)
    if plan.listen.port != starting.running_plan(instance).listen.port:
        starting.check_startable(plan)
    client.stop(instance, None, waiting=lambda drain_s: operate.say_waiting(instance, drain_s))


def _launch(
    instance: Instance, plan: Plan, wished: dict[str, str], term: _Term | None, *, quiet: bool
) -> None:
    from glm53ctl import client, render, starting
    from glm53ctl.api_key import ensure_api_key
    from glm53ctl.env import Environ
    from glm53ctl.errors import Conflict

    starting.check_startable(plan)
    made = ensure_api_key(plan, Environ.current(), own_folder=instance.folder)
    if made and not quiet:
        render.say(f" key   made an API key for {plan.listen.host}: {plan.listen.api_key_file}")
    if not quiet:
        words = (plan.mode, plan.model.served_name, plan.url, plan.fingerprint())
        render.say(f" plan  {' · '.join(words)}")
    try:
        with nullcontext() if term is None else term.later():
            launched = client.launch(instance, plan, wishes=wished)
    except _Terminated:
        client.stop(instance, 0.0)
        raise
    if not launched:
        raise Conflict(
            f"{instance.name!r} is being started by another command",
            hint=f"glm53ctl status{instance.option} --watch shows how far it is",
        )


class _Terminated(KeyboardInterrupt):
    """SIGTERM came."""


class _Term:
    """SIGTERM as an exception, from now on; not in the middle of what must be whole."""

    def __init__(self) -> None:
        self._holding = self._came = False
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, *_: object) -> None:
        self._came = True
        if not self._holding:
            raise _Terminated

    @contextmanager
    def later(self) -> Generator[None]:
        """What comes in this block is raised at its end."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._came:
            raise _Terminated


def _attach(instance: Instance, tell: Callable[[], None]) -> int:
    """Show the log until the instance ends; Ctrl-C or SIGTERM stops it. Returns its exit code."""
    from glm53ctl import client, render
    from glm53ctl.supervisor import logs

    try:
        tell()
        for line in logs.follow(
            instance.log_path, 0, until=lambda: not client.is_running(instance)
        ):
            render.emit(line)
    except KeyboardInterrupt:
        render.say("stopping; open streams get 30 s, Ctrl-C again ends them now")
        try:
            client.stop(instance, None)
        except KeyboardInterrupt:
            client.stop(instance, 0.0, force=True)
    record, _ = client.current(instance)
    return record["exit_code"] or 0 if record else 0


def _tell(instance: Instance, record: dict[str, Any], already: bool, style: Style) -> None:
    """Say on stdout that it serves: for programs, for scripts, or for people."""
    from glm53ctl import render

    match style:
        case "json":
            body = {"ok": True, "already_up": already, **record}
            render.emit_json({"schema": "glm53ctl.up/1", **body})
        case "url":
            render.emit(f"{record['url']}/v1")
        case "words":
            _say_ready(instance, record, already)


def _say_ready(instance: Instance, record: dict[str, Any], already: bool) -> None:
    from glm53ctl import render
    from glm53ctl.plan import read_plan
    from glm53ctl.start_view import duration

    url, model = record["url"], record["model"]
    if already:
        up_for = duration(record["phase_s"])  # of serving, as `status` says it
        render.emit(f"already up with this plan ({up_for}), ready  {url}/v1")
        return
    key_file = read_plan(instance.plan_path).listen.api_key_file
    key = f' -H "Authorization: Bearer $(cat {key_file})"' if key_file else ""
    messages = '"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32'
    body = f'{{"model": "{model}", {messages}}}'
    render.emit(f"ready  {url}/v1   model {model}")
    render.emit(
        f"try    curl -s {url}/v1/chat/completions{key} "
        f"-H 'Content-Type: application/json' -d '{body}'"
    )
    verbs = (
        f"status{instance.option} --watch",
        f"logs{instance.option} -f",
        f"down{instance.option}",
    )
    render.emit("next   " + " · ".join(f"glm53ctl {words}" for words in verbs))
