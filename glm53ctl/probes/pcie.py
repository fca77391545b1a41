"""The PCIe path to a card: the narrowest hop from its root port, as sysfs reads it now.

Speed and width stay apart: a generation comes from the speed by table, never by arithmetic. Idle
links drop to Gen1, so what is read here is a hint; only a measured copy is a verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from glm53ctl.hardware import Evidence, Link
from glm53ctl.probes.system import System

GENERATION = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}  # by GT/s of one lane
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True, slots=True)
class Hop:
    address: str
    generation: int | None
    width: int | None
    max_generation: int | None
    max_width: int | None
    removable: bool

    @property
    def text(self) -> str:
        return f"Gen{self.generation} x{self.width}, can Gen{self.max_generation} x{self.max_width}"


def link(system: System, address: str | None, nvml: Mapping[str, Any]) -> Link | None:
    """The link of a card: sysfs's narrowest hop, NVML's figures where sysfs has none."""
    path = tuple(hops(system, address)) if address else ()
    widths = [hop for hop in path if hop.width]
    narrowest = min(widths, key=lambda hop: hop.width or 0, default=None)
    max_generations = [hop.max_generation for hop in path if hop.max_generation]
    generations = [hop.generation for hop in path if hop.generation]
    found = Link(
        generation=min(generations, default=nvml.get("generation")),
        width=narrowest.width if narrowest else nvml.get("width"),
        max_generation=min(max_generations, default=nvml.get("max_generation")),
        max_width=path[0].max_width if path and path[0].max_width else nvml.get("max_width"),
        narrowest=narrowest.address if narrowest else None,
        removable=any(hop.removable for hop in path),
        evidence=tuple(Evidence(f"sysfs {hop.address}", hop.text) for hop in path)
        or (Evidence("NVML link", str(dict(nvml))),),
    )
    return None if found.width is None and found.generation is None else found


def hops(system: System, address: str) -> Iterator[Hop]:
    """The card and its bridges, card first."""
    folder = system.resolve(f"/sys/bus/pci/devices/{address}")
    while folder != "/":
        name = folder.rpartition("/")[2]
        if not _ADDRESS.fullmatch(name):
            return
        yield Hop(
            name,
            generation(system.read(f"{folder}/current_link_speed")),
            lanes(system.read(f"{folder}/current_link_width")),
            generation(system.read(f"{folder}/max_link_speed")),
            lanes(system.read(f"{folder}/max_link_width")),
            (system.read(f"{folder}/removable") or "").strip() == "removable",
        )
        folder = folder.rpartition("/")[0] or "/"


def generation(text: str | None) -> int | None:
    """ "8.0 GT/s PCIe" as 3; None for "Unknown"."""
    found = re.match(r"\s*([0-9.]+)\s*GT/s", text or "")
    return GENERATION.get(float(found[1])) if found else None


def lanes(text: str | None) -> int | None:
    """Lane count; 0 and 255 are sysfs's ways to say unknown."""
    stripped = (text or "").strip()
    return int(stripped) if stripped.isdigit() and int(stripped) not in {0, 255} else None
