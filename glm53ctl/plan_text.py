"""A plan for people and for programs: what was chosen, what was rejected, and the memory budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from glm53ctl.choose import Situation
from glm53ctl.plan import Mode, Plan
from glm53ctl.planner import Outcome, budget_total
from glm53ctl.render import Look, bar, columns, gib
from glm53ctl.words import counted

BAR_CELLS = 24


def plan_document(outcome: Outcome, situation: Situation) -> dict[str, Any]:
    """The JSON of `plan --json`: the plan file's content and what led to it, or what ruled it out."""
    plan = outcome.plan
    return {
        "schema": "glm53ctl.plan-report/1",
        "ok": plan is not None,
        "fingerprint": plan.fingerprint() if plan else None,
        "url": plan.url if plan else None,
        "plan": asdict(plan) if plan else None,
        "model_present": situation.model.present,
        "rejections": [asdict(item) for item in outcome.rejections],
        "predictions": [asdict(item) for item in outcome.predictions],
        "settings": {
            key: {"layer": origin.layer, "where": origin.where}
            for key, origin in situation.profile.origins.items()
        },
    }


def comparison(now: Outcome, then: Outcome) -> Iterator[str]:
    """What a change of the machine would bring, mode by mode."""
    modes = dict.fromkeys(
        [item.mode for item in (*now.predictions, *then.predictions)]
        + [item.mode for item in now.rejections]
    )
    rows = [("mode", "now", "then")]
    rows += [(mode.value, _expectation(now, mode), _expectation(then, mode)) for mode in modes]
    yield from columns(rows)
    yield ""


def _expectation(outcome: Outcome, mode: Mode) -> str:
    for prediction in outcome.predictions:
        if prediction.mode == mode:
            return prediction.text
    rejected = next((item.reason for item in outcome.rejections if item.mode == mode), None)
    return "not possible" if rejected else "speed unknown"


def plan_lines(
    plan: Plan, outcome: Outcome, situation: Situation, look: Look, *, explain: bool
) -> Iterator[str]:
    """A few lines on a terminal; with `explain` every choice and every byte."""
    where = f" on {plan.gpu.name} {plan.gpu.uuid}" if plan.gpu else " on the CPU"
    yield f"{look.paint(plan.mode, 'bold')}{where}, {plan.model.served_name} at {plan.url}"
    yield (
        f"  {counted(plan.cpu.threads, 'thread')}, context {plan.model.context_tokens} tokens, "
        f"up to {counted(plan.limits.max_batch, 'stream')}, plan {plan.fingerprint()}"
    )
    if not situation.model.present:
        yield f"  {look.glyph('warn')} the checkpoint is not in {plan.model.path} yet"
    for prediction in outcome.predictions:
        yield (
            f"  {prediction.mode:<6} {prediction.text} expected, limited by "
            f"{prediction.limited_by} ({prediction.basis})"
        )
    for rejection in outcome.rejections:
        yield f"  {rejection.mode:<6} not possible: {rejection.reason}"
    yield from _pools(plan, situation, look, explain=explain)
    if explain:
        yield "choices"
        rows = [(item.key, item.value, item.origin, item.why) for item in plan.choices]
        yield from columns(rows)


def _pools(plan: Plan, situation: Situation, look: Look, *, explain: bool) -> Iterator[str]:
    capacity = {"ram": situation.hardware.ram.usable_bytes}
    if plan.gpu:
        free = next(gpu.free_bytes for gpu in situation.hardware.gpus if gpu.uuid == plan.gpu.uuid)
        capacity["vram"] = min(free or 0, plan.gpu.vram_limit_bytes or free or 0)
    for pool, total in capacity.items():
        used = budget_total(plan.budgets, pool)
        if not used:
            continue
        drawn = bar(used / total if total else 1.0, BAR_CELLS, unicode=look.unicode)
        yield f"  {pool.upper():<6} {drawn} {gib(used)} of {gib(total)} usable"
        if explain:
            rows = [
                (item.name, gib(item.bytes), item.why)
                for item in plan.budgets
                if item.pool == pool and item.bytes
            ]
            yield from columns(rows, indent="         ")
