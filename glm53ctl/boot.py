"""The minutes after a boot, when the GPU's driver may come up later than we do."""

from __future__ import annotations

import time
from collections.abc import Callable

from glm53ctl.hardware import DriverState
from glm53ctl.probes import gpu
from glm53ctl.probes.system import System

_BOOTING_S = 300.0
_WAIT_S = 30.0
_PERIOD_S = 0.5


def is_booting(system: System) -> bool:
    """True soon after the boot of a machine that has an NVIDIA card."""
    words = (system.read("/proc/uptime") or "").split()
    return bool(words) and float(words[0]) < _BOOTING_S and bool(gpu.nvidia_devices(system))


def wait_for_driver(
    system: System, say: Callable[[str], None], *, limit_s: float = _WAIT_S
) -> bool:
    """Wait while a machine boots until its driver shows a GPU. True when something may have changed."""
    if not is_booting(system) or _answers(system):
        return False
    say(
        f" gpu   the driver is not there yet, and this machine has just booted: waiting {limit_s:.0f} s"
    )
    deadline = time.monotonic() + limit_s
    while not _answers(system) and time.monotonic() < deadline:
        time.sleep(_PERIOD_S)
    return True


def _answers(system: System) -> bool:
    return gpu.probe(system)[0].state is DriverState.OK
