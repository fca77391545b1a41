"""What the kernel logged about the GPU since boot: Xid errors, and cards that fell off the bus."""

from __future__ import annotations

import re
from dataclasses import dataclass

from glm53ctl.probes.system import System

_LOST = "fallen off the bus"
_ADDRESS = re.compile(
    r"(?:GPU|PCI:)\s*\(?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9])?)", re.IGNORECASE
)
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-f:.]+)\): (\d+)", re.IGNORECASE)
LINES_BACK = 4  # a message may be split over lines; the address comes first
HARMLESS_XIDS = frozenset({13, 31, 43, 45})  # an application's own fault


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """One finding: "lost" or "xid", the PCI address where the log has it."""

    kind: str
    address: str | None
    xid: int | None = None


def probe(system: System) -> tuple[GpuEvent, ...] | None:
    """Events of this boot, None when the log cannot be read."""
    result = system.run(
        ["journalctl", "-k", "-b", "-o", "cat", "-g", "NVRM|fallen off"], deadline_s=1.0
    )
    if result.problem is not None or (not result.out and "permission" in result.err.lower()):
        return None
    return events(result.out)


def events(text: str) -> tuple[GpuEvent, ...]:
    """Distinct events in kernel log text."""
    lines = text.splitlines()
    found: dict[GpuEvent, None] = {}
    for number, line in enumerate(lines):
        if _LOST in line:
            context = " ".join(lines[max(0, number - LINES_BACK) : number + 1])
            address = _ADDRESS.findall(context)
            found[GpuEvent("lost", address[-1].lower() if address else None)] = None
        elif match := _XID.search(line):
            found[GpuEvent("xid", match[1].lower(), int(match[2]))] = None
    return tuple(found)
