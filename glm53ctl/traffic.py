"""What moves between the tiers while a server generates, beside what this machine was measured to move. Pure.

From two readings of /stats. A part at its ceiling is what limits the speed now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from glm53ctl.hardware import Measured

Stats = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Rates between two readings. `hit_rate` is of picks found in VRAM; None where there is no such part."""

    hit_rate: float | None
    link_bytes_per_s: float
    tier_bytes_per_s: float | None


def between(before: Stats | None, after: Stats | None) -> Traffic | None:
    """None without an expert cache, without two readings, or when nothing was decoded between them."""
    if before is None or after is None:
        return None
    old, new = _cache(before), _cache(after)
    if not old or not new or new["at_s"] <= old["at_s"]:
        return None
    hits, misses = (new[key] - old[key] for key in ("hits", "misses"))
    if hits < 0 or hits + misses <= 0:  # another server process, or no step
        return None
    copied_bytes = (new["decode_link_gb"] - old["decode_link_gb"]) * 1e9
    elapsed_s = float(after["read_at_s"] - before["read_at_s"])
    experts = _difference(before, after, "cpu_tier", "cpu_experts")
    return Traffic(
        hit_rate=hits / (hits + misses),
        link_bytes_per_s=copied_bytes / (new["at_s"] - old["at_s"]),
        tier_bytes_per_s=None if experts is None else experts * new["slot_bytes"] / elapsed_s,
    )


def line(found: Traffic, ceilings: Measured) -> str:
    """`tiers    VRAM hits 71% · link 18.9 of 25.1 GB/s (75%) · CPU tier 12.0 GB/s`."""
    return "  tiers    " + " · ".join(_parts(found, ceilings))


def _parts(found: Traffic, ceilings: Measured) -> Iterator[str]:
    if found.hit_rate is not None:
        yield f"VRAM hits {found.hit_rate:.0%}"
    yield _rate("link", found.link_bytes_per_s, ceilings.h2d_bytes_per_s)
    if found.tier_bytes_per_s is not None:
        yield _rate("CPU tier", found.tier_bytes_per_s, ceilings.tier_bytes_per_s)


def _rate(name: str, rate: float, ceiling: float | None) -> str:
    if not ceiling:
        return f"{name} {rate / 1e9:.1f} GB/s"
    return f"{name} {rate / 1e9:.1f} of {ceiling / 1e9:.1f} GB/s ({rate / ceiling:.0%})"


def _cache(stats: Stats) -> dict[str, Any]:
    """The counters of the first device's expert cache; empty when this server has none."""
    found = cast("list[dict[str, Any]] | None", stats.get("expert_cache"))
    first = found[0] if found else {}
    return (
        first if first.keys() >= {"at_s", "hits", "misses", "decode_link_gb", "slot_bytes"} else {}
    )


def _difference(before: Stats, after: Stats, part: str, key: str) -> int | None:
    old, new = (cast("dict[str, int] | None", stats.get(part)) for stats in (before, after))
    if not old or not new or key not in new:
        return None
    return new[key] - old.get(key, 0)
