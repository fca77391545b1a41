"""A plot as plain values: what makers return and both renderers draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["line", "bars", "stacked", "shares"]


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one colour. `low` and `high` are the spread of each point, or empty.

    In a "line" chart `style` says whether points are joined, marked, or both.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    style: Literal["both", "line", "points"] = "both"


@dataclass(frozen=True, slots=True)
class Band:
    """A horizontal range behind the series, such as a prediction."""

    name: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Chart:
    """One plot. With `ticks` the x values are positions of these labels.

    "line" has markers and spreads, "bars" one bar per x, "stacked" areas that add up; "shares" is
    horizontal: one bar per label, from 0 to 1.
    """

    name: str
    title: str
    kind: Kind
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    ticks: tuple[str, ...] = ()
    band: Band | None = None
    note: str = ""
