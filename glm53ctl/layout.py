"""Which CPUs the server computes on, from topology, quota and settings. Pure."""

from __future__ import annotations

from glm53ctl.cpulist import format_cpulist, parse_cpulist
from glm53ctl.env import Settings
from glm53ctl.errors import UsageError
from glm53ctl.hardware import Cpu
from glm53ctl.plan import Choice, CpuPlan
from glm53ctl.profile import Profile
from glm53ctl.words import counted

MANY_CORES = 8


def cpu_layout(cpu: Cpu, settings: Settings, *, feeds_gpu: bool) -> CpuPlan:
    """Threads and CPUs of the compute pool: one per physical core, E cores left alone.

    Beside a GPU, one core (two of more than eight) stays free for feeding it and for HTTP. Raises
    UsageError for CPUs outside the affinity mask and for more threads than CPUs.
    """
    cpus = _asked_cpus(cpu, settings) or cpu.performance
    if settings.tier_threads is not None:
        if not 1 <= settings.tier_threads <= len(cpus):
            raise UsageError(
                f"{counted(settings.tier_threads, 'thread')} asked for, "
                f"{counted(len(cpus), 'CPU')} to run them on",
                hint="one thread per CPU of GLM53_CT_CPUS, or per physical core when that is auto",
            )
        threads = settings.tier_threads
    else:
        threads = min(len(cpus), cpu.usable_cores)
        if feeds_gpu and settings.tier_cpus == "auto":
            threads = max(1, threads - (2 if threads > MANY_CORES else 1))
    return CpuPlan(threads=threads, cpus=tuple(cpus[len(cpus) - threads :]))


def core_choice(cpu: Cpu, layout: CpuPlan, profile: Profile) -> Choice:
    """The layout with its reason, for a plan."""
    parts = [counted(len(cpu.performance), f"{'P ' if cpu.efficiency else ''}core")]
    if cpu.efficiency:
        parts.append(f"{counted(len(cpu.efficiency), 'E core')} left alone")
    if cpu.limited_by:
        parts.append(f"limited by {cpu.limited_by}")
    set_by_user = profile.origins["cpu.threads"].layer != "default"
    key = "cpu.threads" if set_by_user else "cpu.cpus"
    origin = profile.origins[key]
    return Choice(
        key,
        f"{counted(layout.threads, 'thread')} on {format_cpulist(layout.cpus)}",
        ", ".join(parts),
        "auto" if origin.layer == "default" else profile.origin(key),
    )


def _asked_cpus(cpu: Cpu, settings: Settings) -> tuple[int, ...]:
    if settings.tier_cpus.strip().lower() == "auto":
        return ()
    asked = parse_cpulist(settings.tier_cpus)
    outside = sorted(set(asked) - set(cpu.allowed))
    if not asked or outside:
        what = f"CPUs {format_cpulist(outside)} are not ours" if outside else "not a list of CPUs"
        raise UsageError(
            f"{settings.tier_cpus!r}: {what}", hint=f"allowed: {format_cpulist(cpu.allowed)}"
        )
    return asked
