"""From flags to a plan: settings, hardware and model facts meet the pure planner here.

Used by `up`, `plan` and `doctor`. Reads the machine; writes nothing but the rates it measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from glm53ctl import claims, known_rates
from glm53ctl import profile as profiles
from glm53ctl.env import Environ
from glm53ctl.errors import UsageError
from glm53ctl.gpu_select import select_gpu
from glm53ctl.hardware import Gpu, Hardware
from glm53ctl.model_source import find_model
from glm53ctl.paths import Paths
from glm53ctl.plan import Plan
from glm53ctl.planner import Model, Outcome, consider
from glm53ctl.probes import machine
from glm53ctl.probes.system import System, this_system

_NO_SETTINGS = frozenset({"profile", "sets", "model_of"})


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The flags a user gave. None means not given; names are those of Settings."""

    mode: str | None = None
    model: str | None = None
    served_name: str | None = None
    context_tokens: int | None = None
    host: str | None = None
    port: int | None = None
    api_key_file: str | None = None
    gpu: str | None = None
    engine: str | None = None
    instance: str | None = None
    max_batch: int | None = None
    cache_tokens: int | None = None
    load_format: str | None = None
    profile: str | None = None  # a profile's name or file, not a setting itself
    sets: Sequence[str] | None = None  # --set KEY=VALUE, any setting by its key
    model_of: str | None = None  # whose model it is, where no flag named one

    def flags(self) -> dict[str, object | None]:
        """Settings fields by name, for `profile.load`. Raises UsageError for an unknown --set key."""
        names = (name for name in self.__slots__ if name not in _NO_SETTINGS)
        given: dict[str, object | None] = {name: getattr(self, name) for name in names}
        return given | dict(profiles.parse_set(text) for text in self.sets or ())

    def spelled(self) -> dict[str, str]:
        """What gave a setting that has no flag of its name: --set, or another server."""
        by_set = {
            profiles.parse_set(text)[0]: f"--set {text.partition('=')[0].strip()}"
            for text in self.sets or ()
        }
        return ({"model": self.model_of} if self.model_of else {}) | by_set


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything a plan is made from, kept so that a plan can be explained."""

    profile: profiles.Profile
    paths: Paths
    hardware: Hardware
    model: Model
    environ: Environ


def choose_plan(options: PlanOptions, *, system: System | None = None) -> Plan:
    """The plan for these flags on this machine.

    Raises UsageError for bad settings, BadModel or ArtifactError for the checkpoint, and NoFit,
    naming what rejected each mode, when no mode fits.
    """
    return decide(survey(options, system=system)).chosen()


def survey(options: PlanOptions, *, system: System | None = None) -> Situation:
    """Read settings, checkpoint, hardware and its known rates. Raises as `choose_plan`, but never NoFit."""
    environ = system.environ if system else Environ.current()
    profile = profiles.load(
        options.flags(), environ=environ, profile=options.profile, spelled=options.spelled()
    )
    paths = profiles.paths_for(profile, environ)
    model = find_model(profile.settings, paths)
    hardware = machine.probe(system or this_system(environ))
    gpu = selected_gpu(hardware, profile.settings.gpu)
    hardware = known_rates.recalled(hardware, gpu, paths.cache_dir, today=known_rates.utc_today())
    hardware = claims.beside(hardware, paths, profile.settings.instance)
    return Situation(profile, paths, hardware, model, environ)


def measured(situation: Situation) -> Situation:
    """The situation with rates measured on this machine, and kept; takes a few seconds."""
    from glm53ctl.probes import measure

    system = this_system(situation.environ)
    gpu = selected_gpu(situation.hardware, situation.profile.settings.gpu)
    found = measure.measure(system, situation.hardware, gpu)
    known_rates.keep(system, found, gpu, situation.paths.cache_dir, today=known_rates.utc_today())
    return replace(situation, hardware=found)


def selected_gpu(hardware: Hardware, selector: str | None) -> Gpu | None:
    """The card that the settings select; None when there is none, or no such card."""
    try:
        return select_gpu(hardware.gpus, selector) if hardware.gpus else None
    except UsageError:
        return None


def decide(situation: Situation) -> Outcome:
    """The planner's outcome: a plan or rejections. Pure."""
    return consider(situation.hardware, situation.model, situation.profile, situation.paths)
