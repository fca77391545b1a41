"""Two results side by side: which figures changed by more than their noise. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from glm53ctl.bench.result import Result
from glm53ctl.errors import UsageError

LEAST_CHANGE = 0.05  # below this nothing is called a change
SINGLE_NOISE = 0.10  # of a figure measured once


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with its spread. `more_is_better` is False for times."""

    name: str
    median: float
    low: float
    high: float
    count: int
    unit: str
    scale: float = 1.0
    more_is_better: bool = True

    @property
    def text(self) -> str:
        """`13.9 ±0.2`; only the value when it was measured once."""
        if self.count < 2:
            return plain(self.median / self.scale)
        return f"{plain(self.median / self.scale)} ±{plain((self.high - self.low) / 2 / self.scale, 2)}"


def plain(value: float, digits: int = 3) -> str:
    """A number with that many digits or more, never with an exponent: 6552, 27.4, 0.0103."""
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of this result against the same one of another."""

    now: Figure
    before: Figure
    disturbed: bool = False  # one of the two runs was: nothing follows from a difference

    @property
    def share(self) -> float:
        return self.now.median / self.before.median - 1 if self.before.median else 0.0

    @property
    def outside_noise(self) -> bool:
        """The ranges of both do not meet and the medians differ enough to matter."""
        if self.now.count < 2 or self.before.count < 2:
            return abs(self.share) > SINGLE_NOISE
        apart = self.now.low > self.before.high or self.now.high < self.before.low
        return apart and abs(self.share) >= LEAST_CHANGE

    @property
    def worse(self) -> bool:
        if self.disturbed or not self.outside_noise:
            return False
        return (self.share < 0) == self.now.more_is_better

    @property
    def words(self) -> str:
        if not self.outside_noise:
            return f"{self.share:+.1%}  within noise"
        if self.disturbed:
            return f"{self.share:+.1%}  not comparable, a run was disturbed"
        return f"{self.share:+.1%}  {'worse' if self.worse else 'better'}, outside noise"


def figures(result: Result) -> Iterator[Figure]:
    """Every figure of a result, in the order of its table."""
    sweep = result.sweep or {}
    decode = cast("dict[str, dict[str, Any]]", sweep.get("decode", {}))
    for name, found in decode.items():
        if "skipped" not in found:
            yield _spread(f"decode {name}", found["aggregate"], "tok/s")
    prefill = cast("dict[str, dict[str, Any]]", sweep.get("prefill", {}))
    for tokens, found in prefill.items():
        if "median" in found:
            yield _spread(f"prefill {tokens}", found, "tok/s")
    waits = cast("dict[str, dict[str, Any]]", sweep.get("ttft_s", {}))
    for tokens, found in waits.items():
        yield _spread(f"TTFT {tokens}", found, "s", more_is_better=False)
    for key, name in (
        ("h2d_bytes_per_s", "link"),
        ("ram_read_bytes_per_s", "RAM read"),
        ("tier_bytes_per_s", "CPU tier"),
    ):
        rate = result.measured.get(key)
        if rate:
            yield Figure(name, rate, rate, rate, 1, "GB/s", scale=1e9)


def _spread(name: str, found: dict[str, Any], unit: str, *, more_is_better: bool = True) -> Figure:
    return Figure(
        name,
        found["median"],
        found["min"],
        found["max"],
        found["n"],
        unit,
        more_is_better=more_is_better,
    )


def changes(now: Result, before: Result) -> list[Change]:
    """The figures that both results have."""
    old = {figure.name: figure for figure in figures(before)}
    disturbed = bool(now.taints or before.taints)
    return [
        Change(figure, old[figure.name], disturbed) for figure in figures(now) if figure.name in old
    ]


def differences(now: Result, before: Result) -> list[str]:
    """`driver 580.126 → 590.48` for everything that makes two results incomparable."""
    pairs = {
        "plan": (before.served.plan, now.served.plan),
        "model": (before.served.model, now.served.model),
        "version": (before.version, now.version),
        "CPU": (before.machine.cpu, now.machine.cpu),
        "GPU": (before.machine.gpu, now.machine.gpu),
        "driver": (before.machine.driver, now.machine.driver),
        "power cap": (before.machine.power_limit_w, now.machine.power_limit_w),
    }
    return [f"{name} {old} → {new}" for name, (old, new) in pairs.items() if old != new]


def check_comparable(now: Result, before: Result) -> None:
    """Raises UsageError naming what differs between the two besides the speed."""
    found = differences(now, before)
    if found:
        raise UsageError(
            f"the two results are not of the same thing: {', '.join(found)}",
            hint="--force compares them all the same",
        )
