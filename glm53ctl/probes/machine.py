"""All probes that a plan needs, in one value. Each keeps to its own files; none can stop another."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from glm53ctl.hardware import Cpu, Driver, DriverState, Hardware, Host, Measured, Ram
from glm53ctl.probes import cpu, gpu, host, ram
from glm53ctl.probes.system import System

Answer = TypeVar("Answer")
ENGINE_MODULES = ("torch", "exllamav3", "transformers", "fastapi")


def probe(system: System, *, measured: Measured | None = None) -> Hardware:
    """What this machine has. Reads only; takes well under a second plus NVML's deadline."""
    broken: list[tuple[str, str]] = []
    driver, gpus, unknown = _guarded("gpu", lambda: gpu.probe(system), _NO_GPU, broken)
    return Hardware(
        cpu=_guarded("cpu", lambda: cpu.probe(system), _NO_CPU, broken),
        ram=_guarded("ram", lambda: ram.probe(system), Ram(0, 0), broken),
        driver=driver,
        host=_guarded("host", lambda: host.probe(system), Host("unknown", "unknown"), broken),
        gpus=gpus,
        engines=frozenset(name for name in ENGINE_MODULES if system.can_import(name)),
        measured=measured or Measured(),
        unknown=(*unknown, *broken),
    )


_NO_GPU = (Driver(DriverState.ERROR, detail="the GPU probe failed"), (), ())
_NO_CPU = Cpu("unknown", "unknown CPU", frozenset(), (0,), (0,), (0,))


def _guarded(
    name: str, call: Callable[[], Answer], otherwise: Answer, broken: list[tuple[str, str]]
) -> Answer:
    """A probe's answer, or `otherwise` with the reason noted: one probe never stops the rest."""
    try:
        return call()
    except Exception as err:  # noqa: BLE001 - translated into an unknown fact
        broken.append((name, f"{type(err).__name__}: {err}"))
        return otherwise
