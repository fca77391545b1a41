"""A doctor report as lines: one per check, grouped by area, with the fix where there is one."""

from __future__ import annotations

from collections.abc import Iterator

from glm53ctl import __version__
from glm53ctl.checks.base import Status
from glm53ctl.doctor import Check, Report
from glm53ctl.render import Look, columns

AREA_CELLS = 8
_QUIET = {Status.PASS, Status.SKIP}


def lines(report: Report, look: Look, *, verbose: bool = False) -> Iterator[str]:
    """The whole report. A failed check shows its id; `verbose` shows every id and the evidence."""
    host = report.hardware.host
    yield f"glm53ctl {__version__} on {host.system}, read-only, nothing is changed"
    yield ""
    area = None
    width = max((len(check.title) for check in report.checks), default=0)
    for group in _groups(report.checks, verbose=verbose):
        check = group[0]
        label = check.area if check.area != area else ""
        area = check.area
        if len(group) > 1:
            names = ", ".join(item.title for item in group)
            yield f"{label.ljust(AREA_CELLS)} {look.glyph('skip')} {names}: {check.finding.observed}"
        else:
            yield from _check(check, label.ljust(AREA_CELLS), width, look, verbose=verbose)
    yield ""
    if report.whole:
        yield from _expected(report)
    yield _summary(report, look)


def _groups(checks: tuple[Check, ...], *, verbose: bool) -> Iterator[list[Check]]:
    """Checks of one area that were skipped for the same reason share a line, unless verbose."""
    held: list[Check] = []
    for check in checks:
        same = held and (held[0].area, held[0].finding) == (check.area, check.finding)
        if held and not (same and check.finding.status is Status.SKIP and not verbose):
            yield held
            held = []
        held.append(check)
    if held:
        yield held


def _check(check: Check, area: str, width: int, look: Look, *, verbose: bool) -> Iterator[str]:
    finding = check.finding
    loud = finding.status not in _QUIET
    name = f"{check.id} " if loud or verbose else ""
    yield f"{area} {look.glyph(finding.status)} {check.title.ljust(width)}  {name}{finding.observed}"
    indent = " " * (AREA_CELLS + width + 5)
    if finding.required and loud:
        yield f"{indent}needs  {finding.required}"
    if finding.fix and loud:
        notes = ", needs root" if finding.fix.needs_root else ""
        notes += ", needs a reboot" if finding.fix.needs_reboot else ""
        yield f"{indent}fix  {finding.fix.text}{notes}"
        for command in finding.fix.commands:
            yield f"{indent}     $ {command}"
    if verbose:
        for item in finding.evidence:
            yield f"{indent}from {item.source}: {item.raw}"


def _expected(report: Report) -> Iterator[str]:
    """Expected speed of each mode, or what rules it out."""
    outcome = report.outcome
    if outcome is None:
        return
    yield f"{outcome.model_name} on this machine"
    chosen = outcome.plan.mode if outcome.plan else None
    rows = [
        (
            f"{item.mode}{' (chosen)' if item.mode == chosen else ''}",
            f"{item.text} decode, limited by {item.limited_by} ({item.basis})",
        )
        for item in outcome.predictions
    ]
    rows += [(item.mode.value, f"not possible: {item.reason}") for item in outcome.rejections]
    yield from columns(rows)
    yield ""


def _summary(report: Report, look: Look) -> str:
    blocking = sum(check.blocks for check in report.checks)
    notes = report.count(Status.WARN) + report.count(Status.FAIL) - blocking
    parts = [
        f"{blocking} blocking",
        f"{notes} note{'' if notes == 1 else 's'}",
        f"{report.count(Status.UNKNOWN)} unknown",
    ]
    verdict = look.paint(parts[0], "red" if blocking else "green")
    rest = ", ".join(parts[1:])
    return f"{verdict}, {rest}, {report.elapsed_s:.1f} s    details: -v   machine-readable: --json"
