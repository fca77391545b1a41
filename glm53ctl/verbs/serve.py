"""`glm53ctl serve`: the server itself in the foreground, for containers and service managers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from glm53ctl.verbs import operate, options


def serve(
    *,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="Serve this plan as it is.")
    ] = None,
    mode: options.ModeOption = None,
    model: options.ModelOption = None,
    profile: options.ProfileOption = None,
    host: options.HostOption = None,
    port: options.PortOption = None,
    gpu: options.GpuOption = None,
    context_tokens: options.ContextOption = None,
    served_name: options.ServedNameOption = None,
    api_key_file: options.ApiKeyFileOption = None,
    engine: options.EngineOption = None,
    load_format: options.LoadFormatOption = None,
    sets: options.SetOption = None,
    drain: operate.DrainOption = None,
) -> None:
    """Serve in the foreground without a supervisor; whoever started this restarts it.

    SIGTERM and Ctrl-C drain and stop it. Exit codes are those of every verb.

    Examples:

      glm53ctl serve --model tiny

      glm53ctl serve --plan plan.json
    """
    from glm53ctl.choose import PlanOptions

    given: dict[str, Any] = {
        "mode": mode,
        "model": model,
        "profile": profile,
        "host": host,
        "port": port,
        "gpu": gpu,
        "context_tokens": context_tokens,
        "served_name": served_name,
        "api_key_file": api_key_file,
        "engine": engine,
        "load_format": load_format,
        "sets": sets,
    }
    code = _serve(plan_file, PlanOptions(**given), 30.0 if drain is None else drain)
    if code:
        raise typer.Exit(code)


def _serve(plan_file: Path | None, options: Any, drain_s: float) -> int:
    from glm53ctl import choose, foreground, render, starting
    from glm53ctl.api_key import ensure_api_key
    from glm53ctl.env import Environ
    from glm53ctl.plan import read_plan

    plan = read_plan(plan_file) if plan_file else choose.choose_plan(options)
    starting.check_startable(plan)
    folder = operate.named_instance(options.instance).folder
    if ensure_api_key(plan, Environ.current(), own_folder=folder):
        render.say(f" key   made an API key for {plan.listen.host}: {plan.listen.api_key_file}")
    render.say(f" plan  {plan.mode} · {plan.model.served_name} · {plan.url} · {plan.fingerprint()}")
    return foreground.run(plan, drain_s, lambda url: render.say(f" ready {url}/v1"))
