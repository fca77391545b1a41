"""A result as lines on a terminal and as a Markdown block for an issue. Pure but for the look."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from glm53ctl.bench import verdict as verdicts
from glm53ctl.bench.compare import Change, figures
from glm53ctl.bench.result import Result
from glm53ctl.render import Look, columns, gib
from glm53ctl.words import counted

_COLOURS = {
    verdicts.OK: "green",
    verdicts.SLOW: "yellow",
    verdicts.TAINTED: "yellow",
    verdicts.QUALITY_FAILED: "red",
    verdicts.BURSTY: "red",
}


def result_lines(
    result: Result, changed: list[Change] | None, look: Look, *, before_tainted: bool = False
) -> Iterator[str]:
    """What `glm53ctl bench` prints; `changed` when it is compared with an earlier result."""
    yield machine_words(result)
    yield served_words(result)
    if changed is None:
        rows = [(one.name, one.text, one.unit) for one in figures(result)]
    else:
        rows = [("", "this", "before", "", "change")]
        rows += [(c.now.name, c.now.text, c.before.text, c.now.unit, c.words) for c in changed]
    yield from columns(_quality_rows(result))
    yield from columns(rows)
    yield from (f"  {words}" for words in stream_words(result))
    if changed is not None and before_tainted:
        yield f"  {look.paint('tainted', 'yellow')}  the earlier result was: changes may be disturbances"
    for text in result.taints:
        yield f"  {look.paint('tainted', 'yellow')}  {text}"
    judged = result.verdict
    yield f"verdict  {look.paint(judged.name, _COLOURS.get(judged.name, 'dim'))}: {judged.why}"
    for place in judged.where:
        yield f"         {place}"


def stream_words(result: Result) -> Iterator[str]:
    """What `decode C4` counts, where several streams were measured."""
    found: dict[str, Any] = (result.sweep or {}).get("decode", {})
    several = [name for name, one in found.items() if name != "C1" and "skipped" not in one]
    if several:
        yield f"{', '.join(several)}: that many streams at once, and the sum of their tokens per second"


def machine_words(result: Result) -> str:
    machine = result.machine
    parts = [f"{machine.cpu}, {counted(machine.cores, 'core')}", gib(machine.ram_bytes)]
    if machine.gpu:
        cap = f" at {machine.power_limit_w:.0f} W" if machine.power_limit_w else ""
        parts.append(f"{card_words(result)}{cap}, {machine.link or 'unknown link'}")
        parts.append(f"driver {machine.driver}")
    return " · ".join([*parts, machine.system])


def served_words(result: Result) -> str:
    served = result.served
    return (
        f"{model_words(served.model)} · mode {served.mode} · engine {served.engine} · plan {served.plan}"
        f" · glm53ctl {result.version}{f' ({result.commit})' if result.commit else ''} · {result.created[:16].replace('T', ' ')} UTC"
    )


def card_words(result: Result) -> str:
    """The GPU, and how much of it the plan may use when that is not all."""
    limit = result.served.vram_limit_bytes
    held = f" held to {gib(limit)}" if limit else ""
    return f"{result.machine.gpu}{held}"


def model_words(name: str | None) -> str:
    """The served name; of weights made in memory, what they are."""
    return re.sub(r"^dummy-(\d+)$", r"random weights, \1 layers", name or "unknown model")


def caption(result: Result) -> str:
    """`NVIDIA H200 held to 24.0 GiB · tiny, exact mode · 2026-11-29`: for a plot on its own."""
    machine, served = result.machine, result.served
    where = f"{model_words(served.model)}, {served.mode} mode"
    return f"{card_words(result) if machine.gpu else machine.cpu} · {where} · {result.created[:10]}"


def _quality_rows(result: Result) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    panel = result.panel
    if panel is not None and "error" not in panel:
        kl, top1 = panel["mean_kl_top20"], panel["top1_agreement"]
        words = "KL not a number" if kl is None else f"KL {kl:.3g} nats"
        agreement = f"top-1 {top1:.4f} over {panel['positions']} positions"
        rows.append(("panel", f"{words}, {agreement}"))
    for one in cast("list[dict[str, Any]]", (result.stream or {}).get("endpoints", [])):
        shares = (
            f"{one['half_share']:.0%} in the first half, {one['tail_share']:.0%} in the last second"
        )
        how = "even" if one["pass"] else "in bursts"
        rows.append(("delivery", f"{how}: {shares}, {one['endpoint']}"))
    return rows


def markdown(result: Result, changed: list[Change] | None) -> str:
    """A block to paste into an issue: verdict, figures, machine and command."""
    lines = [
        f"**glm53ctl bench: {result.verdict.name}** — {result.verdict.why}",
        *(f"- {place}" for place in result.verdict.where),
        "",
    ]
    if changed is None:
        lines += ["| figure | median | n |", "|---|---|---|"]
        lines += [f"| {f.name} | {f.text} {f.unit} | {f.count} |" for f in figures(result)]
    else:
        lines += ["| figure | this | before | change |", "|---|---|---|---|"]
        lines += [
            f"| {c.now.name} | {c.now.text} {c.now.unit} | {c.before.text} | {c.words} |"
            for c in changed
        ]
    for words in stream_words(result):
        lines += ["", words]
    panel = result.panel
    if panel is not None and "error" not in panel:
        lines.append("")
        lines.append(
            f"Panel: mean KL {panel['mean_kl_top20']} nats, top-1 {panel['top1_agreement']}, "
            f"{panel['positions']} positions ({panel['file']})"
        )
    lines += ["", f"{machine_words(result)}  ", f"{served_words(result)}  ", f"`{result.command}`"]
    lines += [f"- tainted: {text}" for text in result.taints]
    lines += [f"- {result.note}"] if result.note else []
    return "\n".join(lines)
