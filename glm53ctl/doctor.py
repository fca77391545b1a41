"""Doctor: every check, each in its own guard. Changes nothing; always gives an answer; never raises.

Only a UsageError of the flags is left to the caller: with them there is no question to answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from glm53ctl import __version__, choose, known_rates
from glm53ctl import profile as profiles
from glm53ctl.checks import containers, cpu, gpu, gpu_health, memory, setup, storage
from glm53ctl.checks.base import Context, Finding, Spec, Status
from glm53ctl.env import nearest
from glm53ctl.errors import Glm53Error, UsageError
from glm53ctl.hardware import Hardware
from glm53ctl.model_source import find_model
from glm53ctl.planner import Model, Outcome, consider
from glm53ctl.probes import machine, measure
from glm53ctl.probes.system import System

SCHEMA = "glm53ctl.doctor/1"
SPECS: tuple[Spec, ...] = (
    *setup.FIRST,
    *gpu.SPECS,
    *gpu_health.SPECS,
    *memory.SPECS,
    *cpu.SPECS,
    *storage.SPECS,
    *containers.SPECS,
    *setup.LAST,
)
BLOCKED, ADVISORY = 4, 5
_READ_RATES = frozenset(
    {"GPU-004", "RAM-002", "LIM-003", "DISK-004", "FIT-001"}
)  # what is measured


@dataclass(frozen=True, slots=True)
class Check:
    """One answered check."""

    id: str
    title: str
    area: str
    finding: Finding
    ms: float

    @property
    def blocks(self) -> bool:
        return self.finding.status is Status.FAIL and self.finding.blocking


@dataclass(frozen=True, slots=True)
class Report:
    checks: tuple[Check, ...]
    hardware: Hardware
    outcome: Outcome | None
    elapsed_s: float
    whole: bool = True  # False when only chosen checks were asked for

    def exit_code(self, *, strict: bool = False) -> int:
        """0 usable, 4 blocked, 5 with `strict` when anything failed or warned without blocking."""
        if any(check.blocks for check in self.checks):
            return BLOCKED
        advice = {Status.WARN, Status.FAIL}
        if strict and any(check.finding.status in advice for check in self.checks):
            return ADVISORY
        return 0

    def count(self, status: Status) -> int:
        return sum(check.finding.status is status for check in self.checks)


def examine(
    options: choose.PlanOptions,
    system: System,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    quick: bool = True,
) -> Report:
    """Run the checks. Raises UsageError for wrong flags and unknown check ids."""
    started = time.monotonic()
    specs = chosen(only, skip)
    measured = any(spec.id in _READ_RATES for spec in specs)
    context = look_at(options, system, quick=quick or not measured)
    ignored = set(context.profile.settings.doctor_ignore)
    checks = tuple(run_check(spec, context, ignored=spec.id in ignored) for spec in specs)
    elapsed_s = time.monotonic() - started
    return Report(checks, context.hardware, context.outcome, elapsed_s, whole=not only)


def look_at(options: choose.PlanOptions, system: System, *, quick: bool = True) -> Context:
    """Read everything the checks need. A checkpoint or a plan that fails becomes part of the answer."""
    profile = profiles.load_anyway(
        options.flags(),
        environ=system.environ,
        profile=options.profile,
        spelled=options.spelled(),
    )
    paths = profiles.paths_for(profile, system.environ)
    hardware = machine.probe(system)
    card = choose.selected_gpu(hardware, profile.settings.gpu)
    model: Model | None = None
    outcome: Outcome | None = None
    model_error: Glm53Error | None = None
    outcome_error: Glm53Error | None = None
    try:
        model = find_model(profile.settings, paths)
    except Glm53Error as err:
        model_error = err
    if not quick:
        hardware = measure.measure(system, hardware, card, _large_shard(model))
        known_rates.keep(system, hardware, card, paths.cache_dir, today=known_rates.utc_today())
    if model is not None:
        try:
            outcome = consider(hardware, model, profile, paths)
        except Glm53Error as err:
            outcome_error = err
    return Context(
        system=system,
        hardware=hardware,
        profile=profile,
        paths=paths,
        model=model,
        model_error=model_error,
        outcome=outcome,
        outcome_error=outcome_error,
        gpu=card,
    )


def run_check(spec: Spec, context: Context, *, ignored: bool = False) -> Check:
    """One check; whatever it raises is an unknown, so that the others still answer."""
    started = time.monotonic()
    try:
        finding = spec.run(context)
    except Exception as err:  # noqa: BLE001 - translated: a broken check must not stop the others
        text = f"this check failed: {type(err).__name__}: {err} (a bug in glm53ctl, please report)"
        finding = Finding(Status.UNKNOWN, text)
    if ignored and finding.status in {Status.FAIL, Status.WARN}:
        finding = replace(finding, status=Status.IGNORED, blocking=False)
    return Check(spec.id, spec.title, spec.area, finding, (time.monotonic() - started) * 1000)


def chosen(only: Sequence[str], skip: Sequence[str]) -> tuple[Spec, ...]:
    """The checks to run, in their order. Raises UsageError for an id that does not exist."""
    known = {spec.id for spec in SPECS}
    for name in (*only, *skip):
        if name.upper() not in known:
            close = nearest(name.upper(), known, alike=0.8)
            raise UsageError(
                f"there is no check {name!r}",
                hint=f"did you mean {close}?" if close else "ids: glm53ctl doctor --list",
            )
    wanted = {name.upper() for name in only} or known
    unwanted = {name.upper() for name in skip}
    return tuple(spec for spec in SPECS if spec.id in wanted - unwanted)


def document(report: Report, *, strict: bool = False) -> dict[str, Any]:
    """The JSON of `doctor --json`."""
    plan = report.outcome.plan if report.outcome else None
    code = report.exit_code(strict=strict)
    return {
        "schema": SCHEMA,
        "ok": code == 0,
        "version": __version__,
        "host": asdict(report.hardware.host),
        "plan": asdict(plan) if plan else None,
        "rejections": [asdict(item) for item in report.outcome.rejections]
        if report.outcome
        else [],
        "predictions": [asdict(item) for item in report.outcome.predictions]
        if report.outcome
        else [],
        "checks": [_check_document(check) for check in report.checks],
        "summary": {status.value: report.count(status) for status in Status},
        "blocking": [check.id for check in report.checks if check.blocks],
        "elapsed_ms": round(report.elapsed_s * 1000),
        "exit_code": code,
    }


def _check_document(check: Check) -> Mapping[str, Any]:
    finding = check.finding
    unknown = finding.status is Status.UNKNOWN
    return {
        "id": check.id,
        "title": check.title,
        "area": check.area,
        "status": finding.status.value,
        "blocking": check.blocks,
        "observed": finding.observed,
        "required": finding.required,
        "numbers": dict(finding.numbers),
        "reason": finding.observed if unknown else None,
        "evidence": [asdict(item) for item in finding.evidence],
        "fix": asdict(finding.fix) if finding.fix else None,
        "ms": round(check.ms, 1),
    }


def sudo_commands(report: Report) -> Iterator[str]:
    """Commands of all fixes that need root, for one look and one paste."""
    for check in report.checks:
        fix = check.finding.fix
        if fix and fix.needs_root and check.finding.status in {Status.FAIL, Status.WARN}:
            yield from fix.commands


def _large_shard(model: Model | None) -> Path | None:
    shards = sorted(Path(model.path).glob("*.safetensors")) if model and model.present else []
    return next((shard for shard in shards if shard.stat().st_size > measure.DISK_BYTES), None)
