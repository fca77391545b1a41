"""The supervisor's state machine: scenarios, and properties over random event sequences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm53ctl.supervisor.classify import Failure, Healing
from glm53ctl.supervisor.lifecycle import (
    Action,
    Begin,
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
from glm53ctl.supervisor.machine import step

POLICY = Policy()
CRASH = Failure("crash", "exited with code 1")
OOM = Failure("out of memory", "killed by the kernel's OOM killer", Healing.ONCE)
BAD_MODEL = Failure("bad model", "truncated", Healing.NEVER, 7)


def run(*events: object, state: State | None = None, policy: Policy = POLICY):
    """Feed events; returns the state and all actions."""
    state, done = state or State(), []
    for event in events:
        state, actions = step(state, event, policy)
        done += actions
    return state, done


def ready(at: float = 1.0) -> State:
    return run(Begin(0.0), Ready(at, 1))[0]


def test_start_serves():
    state, actions = run(Begin(0.0), Progress(1.0, 1, "experts 1/42"), Ready(2.0, 1))
    assert (state.phase, state.deadline, actions) == (Phase.READY, None, [Action.SPAWN])


def test_crash_after_ready_backs_off_and_spawns_again():
    state, actions = run(Exited(50.0, 1, CRASH), state=ready())
    assert (state.phase, state.deadline, actions) == (Phase.BACKOFF, 52.0, [])
    state, actions = run(Tick(51.9), state=state)
    assert actions == []
    state, actions = run(Tick(52.0), state=state)
    assert (state.phase, state.child, state.restarts) == (Phase.STARTING, 2, 1)
    assert actions == [Action.SPAWN]


def test_a_stop_after_recovery_has_no_failure_and_one_during_it_has():
    crashed, _ = run(Exited(50.0, 1, CRASH), state=ready())
    assert run(Stop(51.0), state=crashed)[0].last_failure is CRASH
    starting, _ = run(Tick(52.0), state=crashed)
    stopped, _ = run(Stop(53.0), Exited(54.0, 2, CRASH), state=starting)
    assert (stopped.phase, stopped.last_failure) == (Phase.STOPPED, CRASH)
    stopped, _ = run(Ready(53.0, 2), Stop(60.0), Exited(61.0, 2, CRASH), state=starting)
    assert (stopped.phase, stopped.last_failure) == (Phase.STOPPED, None)


def test_back_off_doubles_to_its_cap():
    policy = Policy(breaker_crashes=100)
    state, waits, at = ready(), [], 10.0
    for _ in range(9):
        state, _ = run(Exited(at, state.child, CRASH), state=state, policy=policy)
        waits.append(state.deadline - at)
        at = state.deadline
        state, _ = run(Tick(at), Ready(at, state.child + 1), state=state, policy=policy)
    assert waits == [2, 4, 8, 16, 32, 64, 120, 120, 120]


def test_stable_stretch_refills_the_budget():
    state = replace(ready(at=0.0), crashes=4, last_failure=CRASH)
    assert run(Exited(599.0, 1, CRASH), state=state)[0].phase is Phase.FAILED
    again, _ = run(Exited(600.0, 1, CRASH), state=state)
    assert (again.phase, again.crashes) == (Phase.BACKOFF, 1)


def test_breaker_opens_with_exit_code_9_and_keeps_the_last_reason():
    state = ready()
    for at in range(10, 1000, 100):
        state, actions = run(Exited(float(at), state.child, CRASH), state=state)
        if actions:
            break
        state, _ = run(Tick(state.deadline), Ready(at + 80.0, state.child + 1), state=state)
    assert (state.phase, state.exit_code, state.crashes) == (Phase.FAILED, 9, 5)
    assert "exited with code 1" in state.last_failure.summary


@pytest.mark.parametrize("state", [run(Begin(0.0))[0], ready()])
def test_what_no_restart_heals_ends_at_once(state: State):
    state, actions = run(Exited(9.0, 1, BAD_MODEL), state=state)
    assert (state.phase, state.exit_code, actions) == (Phase.FAILED, 7, [Action.FINISH])


def test_out_of_memory_is_tried_once_more_and_no_more():
    state, _ = run(Exited(9.0, 1, OOM), state=ready())
    assert state.phase is Phase.BACKOFF
    state, actions = run(Tick(11.0), Ready(20.0, 2), Exited(30.0, 2, OOM), state=state)
    assert state.phase is Phase.FAILED
    assert actions[-1] is Action.FINISH


def test_first_start_that_ends_is_final():
    state, _ = run(Begin(0.0), Exited(1.0, 1, CRASH))
    assert (state.phase, state.exit_code) == (Phase.FAILED, 8)


def test_T054_a_long_start_that_moves_is_waited_for():
    state = run(Begin(0.0))[0]
    for second in range(0, 4000, 10):
        state, actions = run(
            Tick(float(second)), Progress(float(second), 1, f"{second}"), state=state
        )
        assert actions == []
    assert state.phase is Phase.STARTING


def test_T055_a_start_that_stands_still_is_a_crash_that_names_the_place():
    state, actions = run(Begin(0.0), Progress(10.0, 1, "shard 12/33"), Tick(129.9))
    assert state.phase is Phase.STARTING
    state, actions = run(Tick(130.0), state=state)
    assert (state.phase, actions) == (Phase.STOPPING, [Action.CAPTURE, Action.TERM])
    state, _ = run(Exited(131.0, 1, CRASH), state=state)
    assert state.exit_code == 8
    assert state.last_failure.summary == "no progress for 120 s at shard 12/33"


def test_T055_start_timeout_of_a_restart_counts_as_a_crash():
    state, _ = run(Exited(9.0, 1, CRASH), Tick(11.0), Tick(131.0), state=ready())
    state, _ = run(Exited(132.0, 2, CRASH), state=state)
    assert (state.phase, state.crashes) == (Phase.BACKOFF, 2)
    assert state.last_failure.kind == "start timeout"


def test_stop_drains_then_hurries_then_kills():
    state, actions = run(Stop(100.0), state=ready())
    assert (state.deadline, actions) == (130.0, [Action.TERM])
    state, actions = run(Tick(130.0), state=state)
    assert (state.deadline, actions) == (135.0, [Action.TERM])
    state, actions = run(Tick(135.0), state=state)
    assert actions == [Action.KILL]
    state, actions = run(Exited(136.0, 1, CRASH), state=state)
    assert (state.phase, state.exit_code, actions) == (Phase.STOPPED, 0, [Action.FINISH])


def test_asking_again_does_not_wait():
    _, actions = run(Stop(100.0), Stop(101.0), Stop(102.0), state=ready())
    assert actions == [Action.TERM, Action.TERM, Action.KILL]


def test_a_process_stuck_in_the_kernel_is_given_up_not_looped_on():
    state, _ = run(Stop(0.0, 0.0), Tick(0.0), Tick(5.0), Tick(15.0), state=ready())
    assert (state.phase, state.exit_code) == (Phase.FAILED, 9)
    assert "stuck in a driver" in state.last_failure.summary


def test_restart_spawns_without_a_wait_and_forgets_crashes():
    state, actions = run(Restart(5.0), Exited(6.0, 1, CRASH), state=replace(ready(), crashes=3))
    assert (state.phase, state.child, state.crashes) == (Phase.STARTING, 2, 0)
    assert actions == [Action.TERM, Action.SPAWN]
    state, actions = run(Exited(9.0, 1, CRASH), Restart(9.5), state=ready())
    assert actions == [Action.SPAWN]


def test_stop_wins_over_a_restart_under_way():
    state, _ = run(Restart(5.0), Stop(5.5), Exited(6.0, 1, CRASH), state=ready())
    assert state.phase is Phase.STOPPED


def test_stop_during_back_off_ends_at_once():
    state, actions = run(Exited(9.0, 1, CRASH), Stop(9.5), state=ready())
    assert (state.phase, actions) == (Phase.STOPPED, [Action.FINISH])


def test_T061_a_stalled_child_is_replaced():
    stall = Failure("stalled", "no step for 61 s")
    state, actions = run(Stalled(99.0, 1, stall), state=ready())
    assert actions == [Action.CAPTURE, Action.TERM]
    state, actions = run(Tick(104.0), Exited(104.1, 1, CRASH), state=state)
    assert (state.phase, state.last_failure) == (Phase.BACKOFF, stall)


def test_T067_a_child_on_the_wrong_gpu_is_never_ready_and_not_retried():
    lost = Failure("wrong GPU", "VRAM is held elsewhere", Healing.NEVER)
    state, actions = run(Begin(0.0), Stalled(9.0, 1, lost), Exited(9.5, 1, CRASH))
    assert (state.phase, state.exit_code, state.last_failure) == (Phase.FAILED, 8, lost)
    assert actions == [Action.SPAWN, Action.CAPTURE, Action.TERM, Action.FINISH]


def test_news_of_an_older_child_is_void():
    state, _ = run(Exited(9.0, 1, CRASH), Tick(11.0), state=ready())
    assert run(Ready(12.0, 1), Exited(12.0, 1, CRASH), state=state)[0] == state


FAILURES = st.sampled_from([CRASH, OOM, BAD_MODEL, Failure("stalled", "x", exit_code=9)])
KINDS = st.sampled_from(
    ["progress", "ready", "exited", "stalled", "stop", "restart", "tick", "stale exit", "begin"]
)
HISTORIES = st.lists(st.tuples(KINDS, FAILURES, st.floats(0, 200, allow_nan=False)), max_size=60)


class World:
    """Children as the loop would have them: spawned and reaped, and nothing else."""

    def __init__(self) -> None:
        self.alive: set[int] = set()

    def event(self, kind: str, state: State, at: float, failure: Failure) -> object | None:
        child = state.child
        if kind == "exited":
            if child not in self.alive:
                return None  # only a child that lives can end
            self.alive.discard(child)
            return Exited(at, child, failure)
        return {
            "progress": Progress(at, child, "experts 1/42"),
            "ready": Ready(at, child),
            "stalled": Stalled(at, child, failure),
            "stop": Stop(at),
            "restart": Restart(at),
            "tick": Tick(at),
            "stale exit": Exited(at, child - 1, failure),
            "begin": Begin(at),
        }[kind]


@given(HISTORIES)
def test_never_two_children_and_alive_exactly_in_the_alive_phases(history):
    world, state, at = World(), State(), 0.0
    for kind, failure, later in [("begin", CRASH, 0.0), *history]:
        at += later
        event = world.event(kind, state, at, failure)
        if event is None:
            continue
        before = state
        state, actions = step(state, event, POLICY)
        for action in actions:
            if action is Action.SPAWN:
                assert not world.alive
                world.alive.add(state.child)
            if action in {Action.TERM, Action.KILL, Action.CAPTURE}:
                assert world.alive
        unkillable = state.last_failure and state.last_failure.kind == "unkillable"
        if not unkillable:
            assert bool(world.alive) is state.phase.alive
        assert (state.exit_code is None) == (Action.FINISH not in actions and not _over(before))
        assert 0 <= state.crashes <= POLICY.breaker_crashes
        waiting = {Phase.STARTING, Phase.STOPPING, Phase.BACKOFF}
        assert (state.deadline is not None) == (state.phase in waiting)


def _over(state: State) -> bool:
    return state.exit_code is not None


@given(HISTORIES)
def test_a_stop_always_ends_it_within_bounded_time(history):
    """Whatever happened before, after Stop and passing time the machine is in a final phase."""
    world, state, at = World(), State(), 0.0
    for kind, failure, later in [("begin", CRASH, 0.0), *history]:
        at += later
        event = world.event(kind, state, at, failure)
        if event is not None:
            state, actions = step(state, event, POLICY)
            world.alive |= {state.child} if Action.SPAWN in actions else set()
    state, _ = step(state, Stop(at), POLICY)
    for _ in range(4):
        if state.deadline is not None:
            at = state.deadline
        state, _ = step(state, Tick(at), POLICY)
    assert state.exit_code is not None
