"""What a staged pass copies: the experts of a layer that are fetched, and neighbours as one copy. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerStage:
    """One layer's copies: `runs` are (source, destination, bytes); `experts` arrive in all."""

    runs: tuple[tuple[int, int, int], ...]
    experts: tuple[int, ...]


def plan_stage(
    missing: list[int],
    heat: list[int],
    *,
    capacity: int,
    home: int,
    destination: int,
    record_bytes: int,
) -> LayerStage:
    """Choose which missing experts of a layer to stage and merge neighbours into one copy. Pure.

    missing: expert ids in order; heat[e]: how much expert e was picked lately. When they do not all fit,
    the coldest stay at home. home / destination: addresses of expert 0's record and of slot 0.
    """
    chosen = missing
    if len(missing) > capacity:
        hottest = sorted(missing, key=lambda e: (-heat[e], e))[:capacity]
        chosen = sorted(hottest)
    runs: list[list[int]] = []
    for position, expert in enumerate(chosen):
        source = home + expert * record_bytes
        target = destination + position * record_bytes
        if runs and runs[-1][0] + runs[-1][2] == source:
            runs[-1][2] += record_bytes
        else:
            runs.append([source, target, record_bytes])
    return LayerStage(tuple((s, d, n) for s, d, n in runs), tuple(chosen))


def slot_runs(slots: list[int], longest: int) -> list[tuple[int, int]]:
    """(first, count) of each run of consecutive slot numbers, cut at `longest`. Pure."""
    runs: list[tuple[int, int]] = []
    for slot in slots:
        if runs and slot == runs[-1][0] + runs[-1][1] and runs[-1][1] < longest:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((slot, 1))
    return runs
