"""`glm53ctl serve`: the server itself in the foreground, for containers and service managers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from glm53ctl.verbs import models, operate, options


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
    cache_tokens: options.CacheTokensOption = None,
    max_batch: options.MaxBatchOption = None,
    served_name: options.ServedNameOption = None,
    api_key_file: options.ApiKeyFileOption = None,
    engine: options.EngineOption = None,
    load_format: options.LoadFormatOption = None,
    sets: options.SetOption = None,
    yes: options.YesOption = False,
    offline: options.OfflineOption = False,
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
        "cache_tokens": cache_tokens,
        "max_batch": max_batch,
        "served_name": served_name,
        "api_key_file": api_key_file,
        "engine": engine,
        "load_format": load_format,
        "sets": sets,
    }
    fetch = models.Fetching(yes=yes, offline=offline)
    code = _serve(plan_file, PlanOptions(**given), fetch, 30.0 if drain is None else drain)
    if code:
        raise typer.Exit(code)


def _serve(plan_file: Path | None, options: Any, fetch: models.Fetching, drain_s: float) -> int:
    from glm53ctl import choose, foreground, render, starting, unused
    from glm53ctl.api_key import ensure_api_key
    from glm53ctl.env import Environ
    from glm53ctl.plan import read_plan

    if plan_file:
        plan = read_plan(plan_file)
    else:
        situation = choose.survey(options)
        plan = models.plan_with_model(situation, options, fetch)
        for warning in (*situation.profile.warnings, *unused.unused(plan, situation.profile)):
            render.warn(warning)
    starting.check_startable(plan)
    folder = operate.named_instance(options.instance).folder
    if ensure_api_key(plan, Environ.current(), own_folder=folder):
        render.say(f" key   made an API key for {plan.listen.host}: {plan.listen.api_key_file}")
    render.say(f" plan  {plan.mode} · {plan.model.served_name} · {plan.url} · {plan.fingerprint()}")
    return foreground.run(plan, drain_s, lambda url: render.say(f" ready {url}/v1"))
