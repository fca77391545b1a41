"""The kernel's notation for sets of CPUs: "0-3,8". Pure."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 1 << 16  # far above any kernel's limit; a typo must not fill the memory


def parse_cpulist(text: str | None) -> tuple[int, ...]:
    """ "0-3,8" as (0, 1, 2, 3, 8); empty for an empty or unreadable list."""
    found: set[int] = set()
    for part in (text or "").strip().split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal():
            stop = int(last if last.isdecimal() else first) + 1
            found.update(range(int(first), min(stop, int(first) + _MOST)))
    return tuple(sorted(found))


def format_cpulist(cpus: Iterable[int]) -> str:
    """(0, 1, 2, 3, 8) as "0-3,8"."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
