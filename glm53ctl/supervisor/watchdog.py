"""Is a serving child making progress? Pure.

Alive means: forward passes are counted up while there is work. Busy is not dead: an answer that comes
late changes nothing, and no answer at all counts only after much longer. Idle is fine, and a missing
answer never looks like idle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from glm53ctl.supervisor.lifecycle import Policy

_REFUSALS = 3  # a server that listens refuses nobody; three in a row is no accident
_STEP_FACTOR = 4.0
_MAX_PATIENCE = 10.0


class Health(StrEnum):
    OK = "ok"
    IDLE = "idle"
    STALLED = "stalled"


@dataclass(frozen=True, slots=True)
class Pulse:
    """One answer of /stats: forward passes so far, requests computed and waiting now."""

    steps: int
    running: int
    queued: int


@dataclass(frozen=True, slots=True)
class Silence:
    """No answer. `refused`: nobody listens, which is not the same as being slow."""

    refused: bool


@dataclass(frozen=True, slots=True)
class Watch:
    """What the watchdog remembers. Times are monotonic seconds."""

    moved_at: float  # last time steps changed, or nothing was to do
    answered_at: float
    busy_at: float  # last time there was work
    steps: int | None = None
    working: bool = False
    refusals: int = 0
    longest_step_s: float = 0.0
    health: Health = Health.IDLE
    words: str = ""

    @classmethod
    def start(cls, at: float) -> Watch:
        return cls(at, at, at)


def parse_pulse(stats: Any) -> Pulse | None:
    """Pulse of a /stats document; None when it does not carry one."""
    try:
        return Pulse(int(stats["steps"]), int(stats["running"]), int(stats["queued"]))
    except (KeyError, TypeError, ValueError):
        return None


def judge(watch: Watch, seen: Pulse | Silence, at: float, policy: Policy) -> Watch:
    """The watch after one observation; `health` and `words` are the verdict."""
    if isinstance(seen, Silence):
        return _judge_silence(watch, seen, at, policy)
    working = seen.running > 0 or seen.queued > 0
    moved = seen.steps != watch.steps
    longest_s = watch.longest_step_s
    if moved and watch.working and watch.steps is not None:
        longest_s = max(longest_s, at - watch.moved_at)
    watch = replace(
        watch,
        steps=seen.steps,
        working=working,
        answered_at=at,
        refusals=0,
        longest_step_s=longest_s,
        moved_at=at if moved or not watch.working else watch.moved_at,
        busy_at=at if working or moved else watch.busy_at,
    )
    if not working:
        return replace(watch, health=Health.IDLE, words="idle")
    still_s = at - watch.moved_at
    limit_s = min(max(policy.stall_s, _STEP_FACTOR * longest_s), _MAX_PATIENCE * policy.stall_s)
    if still_s >= limit_s:
        words = f"{seen.running} running, {seen.queued} queued, but no step for {still_s:.0f} s"
        return replace(watch, health=Health.STALLED, words=words)
    return replace(watch, health=Health.OK, words="working")


def _judge_silence(watch: Watch, seen: Silence, at: float, policy: Policy) -> Watch:
    refusals = watch.refusals + 1 if seen.refused else 0
    watch = replace(watch, refusals=refusals)
    silent_s = at - watch.answered_at
    # somebody may have told the child to leave: it closes its door first, then lets streams end
    leaving_s = policy.drain_s + policy.grace_s
    if refusals >= _REFUSALS and silent_s >= leaving_s:
        words = f"the process lives but has refused connections for {silent_s:.0f} s"
        return replace(watch, health=Health.STALLED, words=words)
    if silent_s >= policy.silent_s:
        words = f"no answer to /stats for {silent_s:.0f} s"
        return replace(watch, health=Health.STALLED, words=words)
    return watch


def policy_for(mode: str, policy: Policy) -> Policy:
    """Widen the stall limit for modes whose single step can honestly take long.

    On the CPU one prefill chunk is one step, and a long one takes minutes on a small machine.
    """
    return replace(policy, stall_s=policy.stall_s * 5) if mode == "cpu" else policy
