"""All probes that a plan needs, in one value. Each keeps to its own files; none can stop another."""

from __future__ import annotations

from glm53ctl.hardware import Hardware, Measured
from glm53ctl.probes import cpu, gpu, host, ram
from glm53ctl.probes.system import System

ENGINE_MODULES = ("torch", "exllamav3", "transformers", "fastapi")


def probe(system: System, *, measured: Measured | None = None) -> Hardware:
    """What this machine has. Reads only; takes well under a second plus NVML's deadline."""
    driver, gpus, unknown = gpu.probe(system)
    return Hardware(
        cpu=cpu.probe(system),
        ram=ram.probe(system),
        driver=driver,
        host=host.probe(system),
        gpus=gpus,
        engines=frozenset(name for name in ENGINE_MODULES if system.can_import(name)),
        measured=measured or Measured(),
        unknown=unknown,
    )
