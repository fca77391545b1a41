"""The supervisor's state in words and numbers: parts of the record, and lines for the log. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from glm53ctl.plan import Plan
from glm53ctl.supervisor.lifecycle import Event, Exited, Phase, State
from glm53ctl.supervisor.ready import LoadProgress


def plan_part(plan: Plan) -> dict[str, Any]:
    """What is served, from the plan."""
    return {
        "mode": plan.mode.value,
        "engine": plan.engine.value,
        "model": plan.model.served_name,
        "fingerprint": plan.fingerprint(),
    }


def state_part(state: State, now: float) -> dict[str, Any]:
    """The machine's state at a monotonic time."""
    failure = state.last_failure
    waiting = state.phase is Phase.BACKOFF and state.deadline is not None
    return {
        "phase": state.phase.value,
        "phase_s": round(now - state.since, 3),
        "retry_in_s": round(max(0.0, (state.deadline or now) - now), 3) if waiting else None,
        "restarts": state.restarts,
        "crashes": state.crashes,
        "ever_ready": state.ever_ready,
        "last_failure": failure.to_dict() if failure else None,
        "exit_code": state.exit_code,
    }


def progress_part(progress: LoadProgress | None, state: State) -> dict[str, Any] | None:
    """How far a load is; None when nothing is loaded."""
    if progress is None or state.phase is not Phase.STARTING:
        return None
    return {"phase": progress.phase, "done": progress.done, "total": progress.total}


def transition_words(before: State, state: State, event: Event) -> str | None:
    """What happened, for the log; None when the phase did not change."""
    if state.phase is before.phase:
        return None
    words = f"{before.phase} -> {state.phase}"
    failure = state.cause
    if state.phase is Phase.FAILED or (isinstance(event, Exited) and state.phase is Phase.BACKOFF):
        failure = state.last_failure
    if failure is not None:
        words += f": {failure.summary}" + (f" ({failure.proof})" if failure.proof else "")
    if state.phase is Phase.BACKOFF and state.deadline is not None:
        words += f"; restart in {state.deadline - state.since:.1f} s"
    return words


def wall_clock() -> str:
    """Now, for people; nothing is ever computed from it."""
    return datetime.now(UTC).astimezone().isoformat(timespec="seconds")
