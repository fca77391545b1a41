"""`glm53ctl plan`: what `up` would run on this machine, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from glm53ctl.verbs import options


def plan(
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
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure link, RAM and CPU first; takes seconds.")
    ] = False,
    what_if: Annotated[
        str | None,
        typer.Option(
            "--what-if",
            metavar="CHANGES",
            help="Predict other parts, a card as well: gpu=RTX3090,ram=256GiB,pcie=5x16.",
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Every choice with its reason.")
    ] = False,
    json_: options.JsonOption = False,
) -> None:
    """Show what `up` would run on this machine, and why.

    Mode, memory, CPUs and expected speed; and what rejected the modes that cannot run.

    Examples:

      glm53ctl plan --explain

      glm53ctl plan --mode exact --context-tokens 32768

      glm53ctl plan --measure --what-if "ram=256GiB,pcie=5x16"

      glm53ctl plan --what-if "gpu=RTX3090,ram=256GiB"
    """
    from dataclasses import replace

    from glm53ctl import choose, render, unused
    from glm53ctl import what_if as changes
    from glm53ctl.cards import assumptions
    from glm53ctl.plan_text import comparison, plan_document, plan_lines

    situation = choose.survey(
        choose.PlanOptions(
            mode=mode,
            model=model,
            profile=profile,
            host=host,
            port=port,
            gpu=gpu,
            context_tokens=context_tokens,
            cache_tokens=cache_tokens,
            max_batch=max_batch,
            served_name=served_name,
            api_key_file=api_key_file,
            engine=engine,
            load_format=load_format,
            instance=instance,
            sets=sets,
        )
    )
    for warning in situation.profile.warnings:
        render.warn(warning)
    if measure:
        situation = choose.measured(situation)
    if what_if:
        now = choose.decide(situation)
        situation = replace(situation, hardware=changes.changed(situation.hardware, what_if))
        if not json_:
            render.emit("\n".join(comparison(now, choose.decide(situation))))
            for line in assumptions(situation.hardware):
                render.emit(line)
    outcome = choose.decide(situation)
    for warning in unused.unused(outcome.plan, situation.profile) if outcome.plan else ():
        render.warn(warning)
    if json_:
        refusal = outcome.refusal()
        failure = render.error_fields(refusal) if refusal else {}
        document = plan_document(outcome, situation) | {"what_if": what_if}
        render.emit_json({**document, **failure})
        raise typer.Exit(refusal.exit_code if refusal else 0)
    chosen = outcome.chosen()
    for line in plan_lines(chosen, outcome, situation, render.look(), explain=explain):
        render.emit(line)
