"""The parts of `glm53ctl bench` as commands: one script each, and two settings in turns."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glm53ctl.verbs import operate, options

_THROUGH: dict[str, object] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


def register(app: typer.Typer) -> None:
    """Add the commands. Those of scripts take the script's own flags, and its own --help."""
    app.command("panel", context_settings=_THROUGH)(panel_only)
    app.command("sweep", context_settings=_THROUGH)(sweep_only)
    app.command("stream", context_settings=_THROUGH)(stream_only)
    app.command("record-panel", context_settings=_THROUGH)(record_panel)
    app.command("kl", context_settings=_THROUGH)(decode_kl)
    app.command("ab")(ab_test)


def panel_only(ctx: typer.Context) -> None:
    """Score a reference panel: bench/score_ref_panel.py."""
    _through(ctx, "score_ref_panel.py", with_panel=True)


def sweep_only(ctx: typer.Context) -> None:
    """Prefill and decode speed: bench/sweep.py."""
    _through(ctx, "sweep.py")


def stream_only(ctx: typer.Context) -> None:
    """Is text delivered evenly? bench/stream_rate.py."""
    _through(ctx, "stream_rate.py")


def record_panel(ctx: typer.Context) -> None:
    """Record a reference panel from a stock server: bench/record_panel.py."""
    _through(ctx, "record_panel.py")


def decode_kl(ctx: typer.Context) -> None:
    """What the CPU tier costs in quality, on the GPU without a server: bench/decode_kl.py."""
    import json

    from glm53ctl import client, render
    from glm53ctl.bench import scripts
    from glm53ctl.bench.verdict import decode_verdict
    from glm53ctl.errors import Conflict

    wanted, given = _take(list(ctx.args), "--instance")
    if not {"--help", "-h"} & set(given):
        instance = operate.named_instance(wanted)
        _check_has_gpu()
        if client.is_running(instance):
            raise Conflict(
                f"{instance.name!r} holds the GPU that this measurement loads the model on",
                hint=f"glm53ctl down{instance.option}",
            )
        if "--plan" not in given and instance.plan_path.exists():
            given += ["--plan", str(instance.plan_path)]
    code = scripts.run_through(scripts.DECODE_KL, given)
    out, _ = _take(given, "--kl-out")
    if code == 0 and out is not None:
        judged = decode_verdict(json.loads(Path(out).read_text(encoding="utf-8")))
        render.emit(f"verdict  {judged.name}: {judged.why}")
        code = judged.exit_code
    if code:
        raise typer.Exit(code)


def ab_test(
    *,
    b: Annotated[
        str,
        typer.Option("--b", metavar="KEY=VALUE,...", help="Settings of arm B.", show_default=False),
    ],
    a: Annotated[str, typer.Option("--a", metavar="KEY=VALUE,...", help="Settings of arm A.")] = "",
    mode: options.ModeOption = None,
    model: options.ModelOption = None,
    port: Annotated[int, typer.Option("--port", help="Port of the servers it starts.")] = 18080,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often A B B A.")] = 1,
    tokens: Annotated[int, typer.Option("--tokens", min=8, help="Longest answer.")] = 128,
    json_: options.JsonOption = False,
) -> None:
    """Compare two settings, interleaved A B B A; starts and stops servers of its own.

    Examples:

      glm53ctl bench ab --model tiny --b cpu.threads=1
    """
    from glm53ctl import render
    from glm53ctl.bench import ab
    from glm53ctl.env import Environ

    arms = ab.parse("A", a), ab.parse("B", b)
    flags = [*(["--mode", mode] if mode else []), *(["--model", model] if model else [])]
    load = ab.Load(tuple(flags), port, rounds, answer_tokens=tokens)
    found = ab.run(arms, load, Environ.current(), lambda line: render.say(f" {line}"))
    if json_:
        render.emit_json(ab.document(arms, found))
        return
    result = ab.change(found)
    for line in render.columns(
        [("A", f"{result.before.text} tok/s", arms[0].words),
         ("B", f"{result.now.text} tok/s", arms[1].words)]
    ):  # fmt: skip
        render.emit(line)
    render.emit(f"  B against A  {result.words}")


def _through(ctx: typer.Context, name: str, *, with_panel: bool = False) -> None:
    """Run a script with the flags given; the server of --instance (or the default) without --url."""
    from glm53ctl.bench import scripts
    from glm53ctl.bench import target as targets

    given = list(ctx.args)
    wanted, given = _take(given, "--instance")
    if not {"--url", "--help", "-h"} & {item.partition("=")[0] for item in given}:
        target = targets.of_instance(operate.named_instance(wanted))
        given += target.flags()
        panel = target.panel() if with_panel and "--panel" not in given else None
        given += ["--panel", str(panel)] if panel is not None else []
    code = scripts.run_through(name, given)
    if code:
        raise typer.Exit(code)


def _check_has_gpu() -> None:
    """Raises Blocked where no GPU could load the model."""
    from glm53ctl.env import Environ
    from glm53ctl.errors import Blocked
    from glm53ctl.probes import machine
    from glm53ctl.probes.system import this_system

    hardware = machine.probe(this_system(Environ.current()))
    if not hardware.gpus:
        raise Blocked(
            "this measurement compares the CPU tier with the GPU alone, and there is no usable GPU",
            hint="glm53ctl doctor says what is wrong with the GPU; quality without one: glm53ctl bench",
        )


def _take(arguments: list[str], name: str) -> tuple[str | None, list[str]]:
    """(value, the rest) of an option of ours among those of a script."""
    if name not in arguments[:-1]:
        return None, arguments
    at = arguments.index(name)
    return arguments[at + 1], arguments[:at] + arguments[at + 2 :]
