"""The supervisor's state machine: `step(state, event, policy) -> (state, actions)`. Pure.

    STOPPED ──begin──▶ STARTING ──ready──▶ READY
                        ▲  │ exit, no progress  │ exit, stalled
              back-off  │  ▼                    ▼
                       BACKOFF ◀── crash ── (STOPPING, when we end the child ourselves)
                          │ breaker, or a cause no restart heals
                          ▼
                        FAILED            STOPPING ──exit──▶ STOPPED

A child is alive exactly in STARTING, READY and STOPPING. There is one timer, `State.deadline`; when
it passes, the loop sends Tick. Events about a child carry its number; those of an older one are void.
"""

from __future__ import annotations

from dataclasses import replace

from glm53ctl.supervisor.classify import Failure, Healing, breaker, no_progress
from glm53ctl.supervisor.lifecycle import (
    Action,
    Begin,
    Event,
    Exited,
    Phase,
    Policy,
    Progress,
    Ready,
    Restart,
    Stalled,
    State,
    Stop,
    Tick,
)

Step = tuple[State, tuple[Action, ...]]


def step(state: State, event: Event, policy: Policy) -> Step:
    """The next state and what to do. Events that mean nothing in a phase change nothing."""
    if isinstance(event, Progress | Ready | Exited | Stalled) and event.child != state.child:
        return state, ()
    match state.phase:
        case Phase.STARTING:
            return _starting(state, event, policy)
        case Phase.READY:
            return _ready(state, event, policy)
        case Phase.STOPPING:
            return _stopping(state, event, policy)
        case Phase.BACKOFF:
            return _backoff(state, event, policy)
        case Phase.STOPPED if isinstance(event, Begin) and state.exit_code is None:
            return _spawn(state, event.at, policy)
        case _:
            return state, ()


def _starting(state: State, event: Event, policy: Policy) -> Step:
    match event:
        case Progress(at, _, where):
            return replace(state, where=where, deadline=at + policy.start_stall_s), ()
        case Ready(at):
            return replace(
                state, phase=Phase.READY, since=at, deadline=None, ever_ready=True, ready_since=at
            ), ()
        case Exited(at, _, failure):
            return _crash(state, at, failure, policy)
        case Stalled(at, _, failure):
            return _condemn(state, at, failure, policy)
        case Stop() | Restart():
            return _end(state, event, policy)
        case Tick(at) if _due(state, at):
            cause = no_progress(policy.start_stall_s, state.where)
            return _condemn(state, at, cause, policy)
        case _:
            return state, ()


def _ready(state: State, event: Event, policy: Policy) -> Step:
    match event:
        case Exited(at, _, failure):
            return _crash(state, at, failure, policy)
        case Stalled(at, _, failure):
            return _condemn(state, at, failure, policy)
        case Stop() | Restart():
            return _end(state, event, policy)
        case _:
            return state, ()


def _stopping(state: State, event: Event, policy: Policy) -> Step:
    match event:
        case Exited(at):
            return _gone(state, at, policy)
        case Stop(at):
            return _hurry(replace(state, wanted=False, cause=None), at, policy)
        case Tick(at) if _due(state, at):
            if not state.hurried:
                return _hurry(state, at, policy)
            if not state.killed:
                return replace(state, killed=True, deadline=at + policy.kill_s), (Action.KILL,)
            return _fail(
                state,
                at,
                Failure(
                    "unkillable",
                    "the server does not die of SIGKILL: it is stuck in a driver or disk call",
                    Healing.NEVER,
                    exit_code=9,
                    error_id="RUN-009",
                    hint="a reboot is normally the only cure",
                ),
            )
        case _:
            return state, ()


def _backoff(state: State, event: Event, policy: Policy) -> Step:
    match event:
        case Stop(at):
            return _stopped(state, at)
        case Restart(at):
            return _spawn(replace(state, crashes=0), at, policy)
        case Tick(at) if _due(state, at):
            return _spawn(replace(state, restarts=state.restarts + 1), at, policy)
        case _:
            return state, ()


def _due(state: State, at: float) -> bool:
    return state.deadline is not None and at >= state.deadline


def _spawn(state: State, at: float, policy: Policy) -> Step:
    return replace(
        state,
        phase=Phase.STARTING,
        child=state.child + 1,
        since=at,
        deadline=at + policy.start_stall_s,
        hurried=False,
        killed=False,
        ready_since=None,
        cause=None,
        where="the start of the process",
    ), (Action.SPAWN,)


def _end(state: State, event: Stop | Restart, policy: Policy) -> Step:
    """The user wants the child to leave. One that serves may drain first."""
    drain_s = policy.drain_s if event.drain_s is None else event.drain_s
    serving = state.phase is Phase.READY
    return replace(
        state,
        phase=Phase.STOPPING,
        since=event.at,
        deadline=event.at + (drain_s if serving else policy.grace_s),
        hurried=not serving,
        wanted=isinstance(event, Restart),
    ), (Action.TERM,)


def _condemn(state: State, at: float, cause: Failure, policy: Policy) -> Step:
    """We want the child to leave: it is useless, so there is nothing to drain."""
    return replace(
        state,
        phase=Phase.STOPPING,
        since=at,
        deadline=at + policy.grace_s,
        hurried=True,
        cause=cause,
    ), (Action.CAPTURE, Action.TERM)


def _hurry(state: State, at: float, policy: Policy) -> Step:
    """Drain is over. Asked again while hurrying, kill."""
    if state.hurried:
        return replace(state, killed=True, deadline=at + policy.kill_s), (Action.KILL,)
    return replace(state, hurried=True, deadline=at + policy.grace_s), (Action.TERM,)


def _gone(state: State, at: float, policy: Policy) -> Step:
    """The child we were ending has ended. One that served had got over earlier failures."""
    if not state.wanted:
        served = state.ready_since is not None
        return _stopped(replace(state, last_failure=None) if served else state, at)
    if state.cause is not None:
        return _crash(state, at, state.cause, policy)
    return _spawn(replace(state, crashes=0), at, policy)


def _crash(state: State, at: float, failure: Failure, policy: Policy) -> Step:
    """Nobody asked for this end: stop for good, or try again later."""
    stable = state.ready_since is not None and at - state.ready_since >= policy.stable_s
    previous = None if stable else state.last_failure
    again = previous is not None and previous.kind == failure.kind and state.crashes > 0
    crashes = 1 if stable else state.crashes + 1
    state = replace(state, crashes=crashes)
    if failure.healing is Healing.NEVER or (failure.healing is Healing.ONCE and again):
        return _fail(state, at, failure)
    if not state.ever_ready:
        return _fail(state, at, failure)
    if crashes >= policy.breaker_crashes:
        return _fail(state, at, breaker(crashes, failure))
    wait_s = min(policy.backoff_first_s * 2 ** (crashes - 1), policy.backoff_cap_s)
    return replace(
        state,
        phase=Phase.BACKOFF,
        since=at,
        deadline=at + wait_s,
        last_failure=failure,
        cause=None,
    ), ()


def _fail(state: State, at: float, failure: Failure) -> Step:
    return replace(
        state,
        phase=Phase.FAILED,
        since=at,
        deadline=None,
        last_failure=failure,
        cause=None,
        exit_code=failure.exit_code,
    ), (Action.FINISH,)


def give_up(state: State, at: float, failure: Failure) -> State:
    """The end for a reason outside the machine."""
    return _fail(state, at, failure)[0]


def _stopped(state: State, at: float) -> Step:
    return replace(state, phase=Phase.STOPPED, since=at, deadline=None, cause=None, exit_code=0), (
        Action.FINISH,
    )
