"""`glm53ctl bench`: is this installation right, and how fast is it for what this machine could do?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glm53ctl.verbs import bench_parts, operate, options

if TYPE_CHECKING:
    from glm53ctl.bench.result import Result
    from glm53ctl.bench.run import Sizes
    from glm53ctl.bench.target import Target

app = typer.Typer(
    help="Prove quality and speed of the running server, with a verdict.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

UrlOption = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="Another server than the instance.")
]
KeyFileOption = Annotated[
    Path | None, typer.Option("--api-key-file", metavar="FILE", help="API key for --url.")
]
PanelOption = Annotated[
    Path | None, typer.Option("--panel", metavar="FILE", help="Reference panel to score against.")
]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write the result here as well.")
]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a report with plots.")
]
PngOption = Annotated[
    Path | None, typer.Option("--png", metavar="DIR", help="Write the plots as PNG files.")
]
CompareOption = Annotated[
    str | None, typer.Option("--compare", metavar="last|FILE", help="Show what changed since.")
]


@app.callback(invoke_without_command=True)
def default(
    ctx: typer.Context,
    *,
    instance: options.InstanceOption = None,
    url: UrlOption = None,
    api_key_file: KeyFileOption = None,
    panel: PanelOption = None,
    compare: CompareOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare across plans, drivers, caps and versions.")
    ] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="Long prompts, long answers, four streams; an hour at most."),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Half a minute: the panel, and speed as a rough figure.")
    ] = False,
    no_measure: Annotated[
        bool, typer.Option("--no-measure", help="Do not measure link, RAM and cores first.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 5 when slow, tainted or worse than before.")
    ] = False,
    out: OutOption = None,
    html: HtmlOption = None,
    png: PngOption = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a Markdown block for an issue.")
    ] = False,
    json_: options.JsonOption = False,
) -> None:
    """Score the panel, watch a stream, sweep speed, and give a verdict; under three minutes.

    Examples:

      glm53ctl bench

      glm53ctl bench --compare last --html report.html

      glm53ctl bench sweep --help
    """
    if ctx.invoked_subcommand is not None:
        return
    from glm53ctl.bench import run as running
    from glm53ctl.errors import UsageError

    if quick and full:
        raise UsageError("--quick and --full exclude each other", hint="give one of them, or none")
    target = _target(instance, url, api_key_file)
    chosen = running.full_sizes if full else running.short_sizes
    sizes = running.QUICK if quick else chosen(target)
    before = _baseline(compare, target)
    result = _measure(target, sizes, before, panel=panel, force=force, measure=not no_measure)
    _write(result, out, html, png)
    style = "json" if json_ else "markdown" if markdown else "lines"
    code = _show(result, before, target, style=style, strict=strict)
    if code:
        raise typer.Exit(code)


def _target(instance: str | None, url: str | None, key_file: Path | None) -> Target:
    from glm53ctl.bench import target as targets

    if url is not None:
        target = targets.of_url(url, key_file)
        targets.check_answers(target)
        return target
    return targets.of_instance(operate.named_instance(instance))


def _baseline(compare: str | None, target: Target) -> Result | None:
    """The result to compare with. Raises UsageError when there is none."""
    from glm53ctl.bench import result as results
    from glm53ctl.bench import saved
    from glm53ctl.errors import UsageError

    if compare is None:
        return None
    if compare != "last":
        return saved.read_shown(Path(compare))
    found = results.saved(target.folder) if target.folder else []
    if not found:
        raise UsageError("there is no earlier result to compare with", hint="glm53ctl bench")
    return saved.read_shown(found[-1])


def _measure(
    target: Target,
    sizes: Sizes,
    before: Result | None,
    *,
    panel: Path | None,
    force: bool,
    measure: bool,
) -> Result:
    """Check that the comparison makes sense before minutes go by, then run."""
    import shlex
    import signal
    import sys

    from glm53ctl import render
    from glm53ctl.bench import compare as comparing
    from glm53ctl.bench.run import Bench
    from glm53ctl.env import Environ
    from glm53ctl.probes.system import this_system

    bench = Bench(
        target, this_system(Environ.current()), sizes, lambda line: render.say(f" {line}"),
        panel_file=panel, measure_machine=measure,
    )  # fmt: skip
    draft = bench.draft(shlex.join(["glm53ctl", *sys.argv[1:]]))
    if before is not None and not force:
        comparing.check_comparable(draft, before)
    # An exception ends the script that is measuring; the default action would leave it behind.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    return bench.run(draft)


def _write(result: Result, out: Path | None, html: Path | None, png: Path | None) -> None:
    from glm53ctl import render

    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(result.to_json(), encoding="utf-8")
    if html is not None:
        from glm53ctl.bench import report

        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(report.page(result), encoding="utf-8")
        render.say(f" report   {html}")
    if png is not None:
        from glm53ctl.bench import charts, png_files, text

        for path in png_files.write(charts.charts(result), png, text.caption(result)):
            render.say(f" plot     {path}")


def _show(
    result: Result, before: Result | None, target: Target, *, style: str, strict: bool
) -> int:
    """Print and keep the result; returns the exit code."""
    import json

    from glm53ctl import render
    from glm53ctl.bench import compare as comparing
    from glm53ctl.bench import result as results
    from glm53ctl.bench import text
    from glm53ctl.bench.verdict import Verdict
    from glm53ctl.errors import Advisory

    changed = comparing.changes(result, before) if before is not None else None
    if style == "json":
        render.emit_json(json.loads(result.to_json()))
    elif style == "markdown":
        render.emit(text.markdown(result, changed))
    else:
        tainted = before is not None and bool(before.taints)
        for line in text.result_lines(result, changed, render.look(), before_tainted=tainted):
            render.emit(line)
    if target.folder is not None:
        render.say(f" saved    {results.save(result, target.folder)}")
    judged = Verdict(result.verdict.name, result.verdict.why)
    if judged.exit_code:
        return judged.exit_code
    worse = any(change.worse for change in changed or [])
    return Advisory.exit_code if strict and (judged.advice or worse) else 0


@app.command("all")
def all_parts(
    *,
    instance: options.InstanceOption = None,
    url: UrlOption = None,
    api_key_file: KeyFileOption = None,
    panel: PanelOption = None,
    out: OutOption = None,
    html: HtmlOption = None,
    png: PngOption = None,
    json_: options.JsonOption = False,
) -> None:
    """The same as `bench --full`."""
    from glm53ctl.bench.run import full_sizes

    target = _target(instance, url, api_key_file)
    result = _measure(target, full_sizes(target), None, panel=panel, force=False, measure=True)
    _write(result, out, html, png)
    code = _show(result, None, target, style="json" if json_ else "lines", strict=False)
    if code:
        raise typer.Exit(code)


@app.command("report")
def report_saved(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A result: what --out wrote.")],
    *,
    html: HtmlOption = None,
    png: PngOption = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a Markdown block for an issue.")
    ] = False,
) -> None:
    """Show a saved result again, with its report and plots; needs no server.

    Examples:

      glm53ctl bench report result.json --html report.html --png plots
    """
    from glm53ctl import render
    from glm53ctl.bench import saved, text

    result = saved.read_shown(file)
    with saved.damage_named(file):
        _write(result, None, html, png)
    if markdown:
        render.emit(text.markdown(result, None))
        return
    for line in text.result_lines(result, None, render.look()):
        render.emit(line)


bench_parts.register(app)
