"""What a doctor check sees and says: `Context` in, `Finding` out; `Spec` names and places it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from glm53ctl.errors import Glm53Error
from glm53ctl.hardware import DriverState, Evidence, Gpu, Hardware
from glm53ctl.paths import Paths
from glm53ctl.plan import Mode
from glm53ctl.planner import Model, Outcome
from glm53ctl.probes.system import System
from glm53ctl.profile import Profile


class Status(StrEnum):
    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    SKIP = "skip"
    IGNORED = "ignored"  # failed or warned, but the user said not to mind


@dataclass(frozen=True, slots=True)
class Fix:
    """A way out: one sentence and commands to paste."""

    text: str
    commands: tuple[str, ...] = ()
    needs_root: bool = False
    needs_reboot: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """One verdict. `numbers` are in base units with the unit in the key; None means unknown."""

    status: Status
    observed: str
    required: str | None = None
    fix: Fix | None = None
    blocking: bool = True  # whether a fail stops `up`
    numbers: Mapping[str, int | float | None] = field(default_factory=dict[str, int | float | None])
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Context:
    """Everything the checks look at; read once, before the first of them runs."""

    system: System
    hardware: Hardware
    profile: Profile
    paths: Paths
    model: Model | None  # None: `model_error` says why
    model_error: Glm53Error | None
    outcome: Outcome | None  # None: `outcome_error` says why
    outcome_error: Glm53Error | None
    gpu: Gpu | None  # the one a plan would use

    @property
    def wants_gpu(self) -> bool:
        """Whether this model needs a GPU here: no CPU plan is possible for it."""
        return not (self.outcome and self.outcome.plan and self.outcome.plan.mode is Mode.CPU)


@dataclass(frozen=True, slots=True)
class Spec:
    id: str
    title: str
    area: str
    run: Callable[[Context], Finding]


def passed(observed: str, **numbers: float | None) -> Finding:
    return Finding(Status.PASS, observed, numbers=numbers)


def skipped(reason: str) -> Finding:
    return Finding(Status.SKIP, reason)


def unknown(reason: str, fix: Fix | None = None) -> Finding:
    return Finding(Status.UNKNOWN, reason, fix=fix)


def no_gpu(context: Context) -> Finding:
    """The answer of every GPU check where no GPU is usable."""
    if context.hardware.driver.state is DriverState.OK and context.outcome_error:
        return skipped("no GPU selected")
    return skipped("no usable GPU")
