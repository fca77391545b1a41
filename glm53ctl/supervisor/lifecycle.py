"""The nouns of supervision: phases, the state, events, actions, and the policy's numbers.

Times called `at` are monotonic seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from glm53ctl.supervisor.classify import Failure


class Phase(StrEnum):
    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    FAILED = "failed"

    @property
    def alive(self) -> bool:
        """True when a child process exists."""
        return self in {Phase.STARTING, Phase.READY, Phase.STOPPING}

    @property
    def final(self) -> bool:
        return self in {Phase.STOPPED, Phase.FAILED}


@dataclass(frozen=True, slots=True)
class Policy:
    """The supervisor's numbers. All in seconds, but for `breaker_crashes`."""

    start_stall_s: float = 120.0  # a start may take for ever, but not stand still this long
    drain_s: float = 30.0  # open streams may finish
    grace_s: float = 5.0  # from "now, please" to SIGKILL
    kill_s: float = 10.0  # a killed process that stays is stuck in the kernel
    backoff_first_s: float = 2.0
    backoff_cap_s: float = 120.0
    breaker_crashes: int = 5
    stable_s: float = 600.0  # ready this long refills the crash budget
    poll_s: float = 2.0  # watchdog period
    stall_s: float = 60.0  # working, yet no step
    silent_s: float = 120.0  # no answer at all
    canary_idle_s: float = 300.0  # after this long idle, generate one token to see that it can


@dataclass(frozen=True, slots=True)
class State:
    """`since` and `deadline` are monotonic seconds; `exit_code` is set exactly in final phases."""

    phase: Phase = Phase.STOPPED
    child: int = 0  # number of the newest child
    since: float = 0.0
    deadline: float | None = None
    wanted: bool = True  # False: the user asked for a stop
    hurried: bool = False  # STOPPING: drain is over
    killed: bool = False  # STOPPING: SIGKILL was sent
    ever_ready: bool = False
    ready_since: float | None = None  # of this child
    crashes: int = 0  # since the last stable stretch
    restarts: int = 0
    where: str = "the start of the process"  # last progress, in words
    cause: Failure | None = None  # STOPPING: why we end the child ourselves
    last_failure: Failure | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    at: float


@dataclass(frozen=True, slots=True)
class Progress:
    at: float
    child: int
    where: str


@dataclass(frozen=True, slots=True)
class Ready:
    at: float
    child: int


@dataclass(frozen=True, slots=True)
class Exited:
    """The child is gone and reaped. `failure` is what its end looks like when nobody asked for it."""

    at: float
    child: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Stalled:
    """The child lives and is of no use: it makes no progress, or it is not where it should be."""

    at: float
    child: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Stop:
    """`drain_s` None: the policy's. Zero: at once. A second Stop means "do not wait"."""

    at: float
    drain_s: float | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    at: float
    drain_s: float | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    at: float


Event = Begin | Progress | Ready | Exited | Stalled | Stop | Restart | Tick


class Action(StrEnum):
    SPAWN = "spawn"
    TERM = "term"  # drain and leave; a second one means "now"
    KILL = "kill"
    CAPTURE = "capture"  # ask the child for its stacks, for the log
    FINISH = "finish"  # leave the loop with State.exit_code
