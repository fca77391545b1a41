"""Every error a user can meet: one small tree, each class with an exit code and a hint.

    Glm53Error                     1   failed, unclassified
     ├── UsageError                2   a flag, a setting or a profile is wrong
     ├── NotRunning                3   nothing to talk to
     ├── Blocked                   4   a doctor check or the planner says this host cannot do it
     │    └── NoFit                4   no mode fits; lists what rejected each one
     ├── Advisory                  5   only with --strict
     ├── Conflict                  6   port, lock, or another plan is running
     ├── ArtifactError             7   a download or a file is missing, corrupt or truncated
     │    └── BadModel             7   a directory is not a checkpoint we can serve
     ├── StartFailed               8   started but never ready
     └── Unhealthy                 9   breaker open, or running but stalled

The server process speaks a second, smaller language to its supervisor: ChildExit.
"""

from __future__ import annotations

from enum import IntEnum


class Glm53Error(Exception):
    """Base of everything shown to a user: `message` says what, `hint` says the way out.

    `error_id` is stable and searchable (for example "MEM-002"); `exit_code` is the process's.
    """

    exit_code = 1
    error_id = "GEN-001"

    def __init__(
        self, message: str, *, hint: str | None = None, error_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if error_id is not None:
            self.error_id = error_id


class UsageError(Glm53Error):
    exit_code = 2
    error_id = "USE-001"


class NotRunning(Glm53Error):
    exit_code = 3
    error_id = "RUN-003"


class Blocked(Glm53Error):
    exit_code = 4
    error_id = "DOC-004"


class NoFit(Blocked):
    """The model does not fit this machine in any mode."""

    error_id = "FIT-001"


class Advisory(Glm53Error):
    exit_code = 5
    error_id = "DOC-005"


class Conflict(Glm53Error):
    exit_code = 6
    error_id = "RUN-006"


class ArtifactError(Glm53Error):
    exit_code = 7
    error_id = "ART-001"


class BadModel(ArtifactError):
    """A directory that is not a checkpoint this project serves; the message names the file."""

    error_id = "ART-002"


class StartFailed(Glm53Error):
    exit_code = 8
    error_id = "RUN-008"


class Unhealthy(Glm53Error):
    exit_code = 9
    error_id = "RUN-009"


class ChildExit(IntEnum):
    """Exit codes of the server process. The supervisor never restarts the permanent ones."""

    OK = 0
    CRASH = 1
    USAGE = 64  # the plan file cannot be read
    BAD_MODEL = 65  # the checkpoint cannot be served
    NO_GPU = 69  # the planned GPU is missing or unusable
    ENGINE_LOST = 70  # the engine cannot go on; a restart heals it
    NO_MEMORY = 71  # a planned allocation was refused at load
    PORT_TAKEN = 75  # somebody else listens on the planned port
    UNSUPPORTED = 78  # wrong exllamav3 version, kernel ABI or schema

    @property
    def permanent(self) -> bool:
        """True when a restart cannot heal the cause."""
        return self in {
            ChildExit.USAGE,
            ChildExit.BAD_MODEL,
            ChildExit.NO_GPU,
            ChildExit.NO_MEMORY,
            ChildExit.PORT_TAKEN,
            ChildExit.UNSUPPORTED,
        }


EXIT_CODES = (
    (0, "ok; warnings are allowed, and so is `up` of a plan that already runs"),
    (1, "the operation failed, or its cleanup is incomplete"),
    (2, "a flag, a setting or a profile is wrong"),
    (3, "not running"),
    (4, "blocked by a doctor check, or no mode fits"),
    (5, "only advice, with --strict; a benchmark regression beyond noise"),
    (6, "conflict: the port, the lock, or another plan is running"),
    (7, "a checkpoint is missing, corrupt or truncated, or there is no space for it"),
    (8, "started but never ready, or on the wrong GPU"),
    (9, "unhealthy: too many crashes, or running but stalled"),
    (130, "interrupted"),
    (143, "terminated"),
)
