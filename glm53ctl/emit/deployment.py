"""What every format says about one server: command, settings, places, GPU, and how long a start takes.

Made once from a plan; the formats only spell it. Settings travel as the GLM53_ variables of the table,
so a unit, a container and a shell start the same plan. A key never travels, only its file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from glm53ctl.choose import Situation
from glm53ctl.env import Row, rows
from glm53ctl.fetch import FLASH_RELEASE
from glm53ctl.plan import Plan
from glm53ctl.probes import docker
from glm53ctl.probes.system import System
from glm53ctl.profile import Profile, text_of
from glm53ctl.runtime import IMAGE
from glm53ctl.supervisor.lifecycle import Policy

RESTART_HEALS_NOT = (
    2,
    4,
    6,
    7,
    9,
)  # exit codes that a service manager must not answer with a start
STOP_S = 75  # drain and grace of the supervisor, and a margin
HEALTH_PATH = "/health"
_SLOW_READ_BYTES_PER_S = 500_000_000
_SLOW_FETCH_BYTES_PER_S = 10_000_000
_COMPILE_S = 150  # kernels are tuned at the first start
_SHORTEST_START_S = 600
_SMALL_BYTES = 10**9  # such a checkpoint is served by the CPU at once: no tuning, no long read
_SMALL_START_S = 180
_PLACES = frozenset({"paths.root", "model.models_dir", "model.dir", "listen.api_key_file"})
_OURS = frozenset({"instance", "listen.host", "listen.port", "gpu.select", "model.name"})
_WSL_TOOLS = "/usr/lib/wsl/lib"
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Deployment:
    """One server to be deployed. Directories are those of this host."""

    instance: str
    command: str  # the glm53ctl of this installation
    image: str
    host: str
    port: int
    model: str
    model_dir: Path  # what a container sees as /models
    gpu_uuid: str | None
    cdi: bool
    own_settings: tuple[tuple[str, str], ...]  # for a unit: flags and environment, not files
    all_settings: tuple[tuple[str, str], ...]  # for a container: it sees none of our files
    key_file: Path | None
    search_path: str
    start_s: int
    memlock_limited: bool
    user_id: int
    group_id: int

    @property
    def name(self) -> str:
        return "glm53" if self.instance == "default" else f"glm53-{self.instance}"

    @property
    def container_environment(self) -> tuple[tuple[str, str], ...]:
        """Variables of a container. It listens on all of its addresses; publishing decides who sees it."""
        fixed = [("GLM53_HOST", "0.0.0.0"), ("GLM53_PORT", str(self.port))]
        if self.model != FLASH_RELEASE.name:
            fixed.append(("GLM53_MODEL", self.model))
        if self.key_file:
            fixed.append(("GLM53_API_KEY_FILE", "/run/secrets/glm53-api-key"))
        return (*fixed, *self.all_settings)

    @property
    def unit_environment(self) -> tuple[tuple[str, str], ...]:
        """Variables of a native unit, which reads this user's configuration file as well."""
        fixed = [("GLM53_INSTANCE", self.instance)] if self.instance != "default" else []
        return (*fixed, ("PATH", self.search_path), *self.own_settings)

    @property
    def published(self) -> str:
        """HOST:PORT:PORT. Published ports bypass a host's firewall, so loopback unless asked for more."""
        host = "127.0.0.1" if self.host == "localhost" else self.host
        host = f"[{host}]" if ":" in host else host
        return f"{host}:{self.port}:{self.port}"

    @property
    def model_volume(self) -> str | None:
        """HOST:CONTAINER of the checkpoint; the tiny one is in the image."""
        return None if self.model == "tiny" else f"{self.model_dir}:/models"

    @property
    def health_command(self) -> str:
        return f"curl -fsS http://127.0.0.1:{self.port}{HEALTH_PATH}"


def deployment(
    situation: Situation, plan: Plan, system: System, *, command: str, image: str | None
) -> Deployment:
    """Everything a format needs. Reads CDI files and /usr/lib/wsl; asks no daemon."""
    settings, profile = situation.profile.settings, situation.profile
    memlock = situation.hardware.host.memlock_hard_bytes
    return Deployment(
        instance=settings.instance,
        command=command,
        image=image or IMAGE,
        host=plan.listen.host,
        port=plan.listen.port,
        model=settings.model if settings.model in {"tiny", FLASH_RELEASE.name} else "/models",
        model_dir=Path(plan.model.path),
        gpu_uuid=plan.gpu.uuid if plan.gpu else None,
        cdi=bool(docker.cdi_devices(system)),
        own_settings=_settings(profile, {"flag", "environment"}, leave_out=frozenset({"instance"})),
        all_settings=_settings(
            profile, {"flag", "environment", "user", "profile"}, leave_out=_PLACES | _OURS
        ),
        key_file=settings.api_key_file,
        search_path=_search_path(command, system),
        start_s=start_seconds(situation),
        memlock_limited=memlock is not None,
        user_id=os.getuid(),
        group_id=os.getgid(),
    )


def start_seconds(situation: Situation) -> int:
    """How long a start may take until /health answers: twice the load, and the download if there is one."""
    facts = situation.model.facts
    rate = situation.hardware.measured.disk_read_bytes_per_s or _SLOW_READ_BYTES_PER_S
    size_bytes = facts.expert_total_bytes + facts.resident_bytes
    if size_bytes < _SMALL_BYTES:
        return max(_SMALL_START_S, int(Policy().start_stall_s))
    load_s = size_bytes / rate
    if not situation.model.present:
        load_s += FLASH_RELEASE.total_bytes / _SLOW_FETCH_BYTES_PER_S / 2
    needed = max(_SHORTEST_START_S, 2 * load_s + _COMPILE_S, Policy().start_stall_s)
    return int(-(-needed // 60) * 60)


def _settings(
    profile: Profile, layers: set[str], *, leave_out: frozenset[str]
) -> tuple[tuple[str, str], ...]:
    """Settings of these layers as variables, in the order of the table."""
    found: list[tuple[str, str]] = []
    for row in rows():
        value = getattr(profile.settings, row.field_name)
        given = profile.origins[row.key].layer in layers
        if given and value is not None and row.key not in leave_out:
            found.append((row.env, _variable_text(row, value)))
    return tuple(found)


def _variable_text(row: Row, value: object) -> str:
    """A value as its variable is written; a unit is started elsewhere, so paths are absolute."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value.absolute()) if isinstance(value, Path) else text_of(value, row)


def _search_path(command: str, system: System) -> str:
    """PATH of a unit: ours, the system's, and where WSL keeps nvidia-smi."""
    own = str(Path(command).parent)
    parts = [own] if own not in {".", *_SYSTEM_PATH.split(":")} else []
    parts.append(_SYSTEM_PATH)
    if system.exists(_WSL_TOOLS):
        parts.append(_WSL_TOOLS)
    return ":".join(parts)
