"""Why a child ended, and whether a restart can heal it. Pure.

Proof and guess are kept apart: "killed by the OOM killer" is said only when the kernel's counter
moved; a bare SIGKILL is "cause not proven".
"""

from __future__ import annotations

import signal
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from glm53ctl.errors import (
    ArtifactError,
    BadModel,
    Blocked,
    ChildExit,
    Conflict,
    Glm53Error,
    StartFailed,
    UsageError,
)


class Healing(StrEnum):
    """What a restart can do about a failure."""

    RESTART = "restart"
    ONCE = "once"  # worth one try; the same kind twice in a row stops
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Failure:
    """One classified end of a child. `exit_code` is what `glm53ctl` reports if this one is final."""

    kind: str
    summary: str
    healing: Healing = Healing.RESTART
    exit_code: int = StartFailed.exit_code
    error_id: str = StartFailed.error_id
    proof: str | None = None
    hint: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, body: dict[str, Any]) -> Failure:
        body = dict(body)
        healing = Healing(body.pop("healing"))
        return cls(healing=healing, **body)


@dataclass(frozen=True, slots=True)
class Report:
    """What a child said about its own failure over the readiness pipe, before it exited."""

    error_id: str
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """The evidence: `returncode` as Popen gives it (negative: signal), the OOM kills that may be this
    one (None: nobody can tell) and who counted them, the child's report and its last lines.
    """

    returncode: int
    oom_kills: int | None = None
    oom_source: str = "memory.events"
    report: Report | None = None
    tail: tuple[str, ...] = ()


# ChildExit -> (kind, class that carries exit code and id, words used when the child said nothing)
_Cause = tuple[str, type[Glm53Error], str]
_PERMANENT: dict[ChildExit, _Cause] = {
    ChildExit.USAGE: ("bad plan", UsageError, "the server could not use its plan"),
    ChildExit.BAD_MODEL: ("bad model", BadModel, "the checkpoint cannot be served"),
    ChildExit.NO_GPU: ("no GPU", Blocked, "the planned GPU is missing or unusable"),
    ChildExit.NO_MEMORY: ("no memory", StartFailed, "a planned allocation was refused at load"),
    ChildExit.PORT_TAKEN: ("port taken", Conflict, "somebody else listens on the planned port"),
    ChildExit.UNSUPPORTED: (
        "unsupported",
        ArtifactError,
        "a component has a version this release does not support",
    ),
}

_SIGNALS: dict[int, tuple[str, Healing, str | None]] = {
    signal.SIGILL: (
        "illegal instruction",
        Healing.NEVER,
        "this CPU lacks an instruction the build needs: `glm53ctl doctor` names it",
    ),
    signal.SIGBUS: (
        "bus error",
        Healing.ONCE,
        "a mapped file was truncated, the disk failed, or /dev/shm is full",
    ),
    signal.SIGSEGV: ("segmentation fault", Healing.RESTART, None),
    signal.SIGABRT: ("abort", Healing.RESTART, None),
    signal.SIGTERM: ("terminated from outside", Healing.RESTART, None),
    signal.SIGKILL: (
        "killed",
        Healing.RESTART,
        "if memory is tight this was probably the OOM killer: `glm53ctl doctor`",
    ),
}

_PIN_HINT = (
    "VRAM may be free all the same: under WSL Windows limits pinned memory, elsewhere RAM is short; "
    "`glm53ctl doctor --only LIM-003` measures it"
)
# Words that are all among the last lines; the first row that matches counts. A refused pin says "out of
# memory" as well, and is about host memory.
_TAIL_PATTERNS: tuple[tuple[tuple[str, ...], str, Healing, str], ...] = (
    (("cudaHostRegister", "out of memory"), "pin limit", Healing.NEVER, _PIN_HINT),
    (("cudaHostAlloc", "out of memory"), "pin limit", Healing.NEVER, _PIN_HINT),
    (
        ("CUDA out of memory",),
        "GPU out of memory",
        Healing.ONCE,
        "glm53ctl up with a larger reserve",
    ),
    (
        ("has fallen off the bus",),
        "GPU lost",
        Healing.ONCE,
        "reboot; check power and riser cable",
    ),
    (
        ("CUDA error",),
        "CUDA error",
        Healing.RESTART,
        "`glm53ctl logs -n 40` has the failing call",
    ),
)


def classify(ending: Ending) -> Failure:
    """The verdict on one ending, in the order: proof, what the child said, signal, patterns, code."""
    if ending.oom_kills and ending.returncode == -signal.SIGKILL:
        return Failure(
            "out of memory",
            "killed by the kernel's OOM killer",
            Healing.ONCE,
            proof=_oom_proof(ending),
            hint="free memory or plan less of it: `glm53ctl plan` shows the budget",
        )
    if ending.returncode < 0:
        return _by_signal(-ending.returncode)
    for code, cause in _PERMANENT.items():
        if ending.returncode == code:
            return _permanent(code, cause, ending.report)
    return _by_code(ending)


def _oom_proof(ending: Ending) -> str:
    if ending.oom_source == "kernel log":
        return "the kernel log names it as the victim"
    return f"{ending.oom_source} oom_kill rose by {ending.oom_kills}"


def _permanent(code: ChildExit, cause: _Cause, report: Report | None) -> Failure:
    kind, error, words = cause
    proof = f"the server exited with {int(code)} ({code.name})"
    if report is None:
        return Failure(
            kind, words, Healing.NEVER, error.exit_code, error.error_id, proof, _LOGS_HINT
        )
    return Failure(
        kind,
        report.message,
        Healing.NEVER,
        error.exit_code,
        report.error_id,
        proof,
        report.hint,
    )


_LOGS_HINT = "`glm53ctl logs -n 40` shows its last lines"


def _by_signal(number: int) -> Failure:
    names = {known.value: known.name for known in signal.Signals}
    name = names.get(number, f"signal {number}")
    kind, healing, hint = _SIGNALS.get(number, (name, Healing.RESTART, None))
    summary = f"killed by {name}"
    if number == signal.SIGKILL:
        summary += ", cause not proven"
    return Failure(kind, summary, healing, hint=hint)


def _by_code(ending: Ending) -> Failure:
    code = ending.returncode
    if code == ChildExit.ENGINE_LOST:
        said = ending.report.message if ending.report else "the engine reported that it is lost"
        return Failure("engine lost", said)
    if code in {126, 127}:
        return Failure(
            "cannot execute",
            f"the server program could not be started (exit code {code})",
            Healing.NEVER,
            hint="the installation is damaged: install glm53ctl again",
        )
    text = "\n".join(ending.tail)
    for words, kind, healing, hint in _TAIL_PATTERNS:
        if all(word in text for word in words):
            return Failure(kind, f"exited with code {code}: {kind}", healing, hint=hint)
    if code == 0:
        return Failure("quit", "exited by itself with code 0")
    last = f": {ending.tail[-1]}" if ending.tail else ""
    return Failure("crash", f"exited with code {code}{last}", hint=_LOGS_HINT)


def lost_in_sleep(failure: Failure) -> Failure:
    """The same failure, soon after the machine woke up: drivers often lose the GPU in a suspend."""
    if failure.healing is Healing.NEVER:
        return failure
    return replace(
        failure,
        kind="GPU lost in suspend",
        summary=f"{failure.summary}, soon after the machine woke from suspend",
        healing=Healing.ONCE,
        hint="keep VRAM over a suspend (NVreg_PreserveVideoMemoryAllocations=1 and the "
        "nvidia-suspend service), or reload the module nvidia_uvm",
    )


def no_progress(limit_s: float, where: str) -> Failure:
    """A start that stopped moving; `where` is the last progress seen."""
    return Failure("start timeout", f"no progress for {limit_s:.0f} s at {where}", hint=_LOGS_HINT)


def misplaced(what: str) -> Failure:
    """A server that is ready, but not on the planned GPU."""
    return Failure(
        "wrong GPU",
        what,
        Healing.NEVER,
        error_id="PLAN-002",
        hint="`glm53ctl doctor` shows the GPUs; at boot the driver may come up late: start "
        "glm53ctl after nvidia-persistenced",
    )


def stalled(what: str) -> Failure:
    """A server that is up but does not work."""
    return Failure("stalled", what, exit_code=9, error_id="RUN-009", hint=_LOGS_HINT)


def supervisor_lost(*, rebooted: bool, option: str = "") -> Failure:
    """A record left open by a supervisor that is gone; `option` names its instance in a command."""
    what = "the machine was restarted" if rebooted else "its supervisor was killed"
    return Failure(
        "supervisor lost",
        f"it was left running and {what}; the stale record is cleared",
        exit_code=1,
        error_id="RUN-001",
        hint=f"glm53ctl restart{option} starts it with the plan it had",
    )


def breaker(crashes: int, last: Failure) -> Failure:
    """Too many crashes without a stable stretch between them."""
    return Failure(
        "breaker open",
        f"{crashes} crashes in a row, giving up; the last one: {last.summary}",
        Healing.NEVER,
        9,
        "RUN-009",
        last.proof,
        last.hint,
    )
