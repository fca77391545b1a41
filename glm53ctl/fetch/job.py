"""What to bring where, from which hubs, and how patiently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from glm53ctl.env import Environ
from glm53ctl.fetch.catalog import Release
from glm53ctl.probes.system import DiskSpace, System


@dataclass(frozen=True, slots=True)
class Policy:
    """How patient a download is. A stall is a connection that brings no byte for `stall_s`."""

    workers: int = 4
    stall_s: float = 120.0
    connect_s: float = 15.0
    retries: int = 5
    backoff_first_s: float = 1.0
    backoff_cap_s: float = 60.0
    longest_wait_s: float = 900.0


@dataclass(frozen=True, slots=True)
class Job:
    """What to bring where, and how."""

    release: Release
    folder: Path
    environ: Environ
    mirrors: tuple[str, ...] = ()
    policy: Policy = field(default_factory=Policy)
    disk: Callable[[Path], DiskSpace | None] = field(default_factory=lambda: System().disk_space)
