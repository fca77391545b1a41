"""A chart as one inline SVG. Colours are classes, so a page can be light or dark. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from glm53ctl.bench.chart import Chart, Series

WIDTH, HEIGHT = 560, 330
LEFT, RIGHT, TOP, BOTTOM = 62, 18, 62, 50
CHARACTER = 6.7  # mean width of one character of the labels, generous
GAP = 18


@dataclass(frozen=True, slots=True)
class Frame:
    """The plot's area in pixels and the data it spans."""

    left: float
    x_low: float
    x_high: float
    y_high: float

    def x(self, value: float) -> float:
        width = WIDTH - RIGHT - self.left
        return self.left + (value - self.x_low) / (self.x_high - self.x_low) * width

    def y(self, value: float) -> float:
        height = HEIGHT - TOP - BOTTOM
        return HEIGHT - BOTTOM - min(value / self.y_high, 1.0) * height


def ticks(high: float, count: int = 5) -> list[float]:
    """Round values from 0 to at least `high`, about `count` steps of 1, 2 or 5 times a power of ten."""
    if high <= 0 or not math.isfinite(high):
        return [0.0, 1.0]
    rough = high / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    steps = math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(steps + 1)]


def draw(chart: Chart) -> str:
    """The SVG element of a chart."""
    body = list(_shares(chart) if chart.kind == "shares" else _axes_and_data(chart))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}">'
        f'<text class="title" x="12" y="22">{escape(chart.title)}</text>{"".join(body)}</svg>'
    )


def _axes_and_data(chart: Chart) -> Iterator[str]:
    marks = ticks(_top(chart))
    frame = _frame(chart, marks[-1])
    yield from _legend(chart)
    yield from _y_axis(chart, frame, marks)
    yield from _x_axis(chart, frame)
    if chart.band is not None:
        top, bottom = frame.y(chart.band.high), frame.y(chart.band.low)
        yield (
            f'<rect class="band" x="{frame.left:.1f}" y="{top:.1f}" '
            f'width="{WIDTH - RIGHT - frame.left:.1f}" height="{max(bottom - top, 1):.1f}"/>'
        )
    if chart.kind == "stacked":
        yield from _stacked(chart, frame)
    elif chart.kind == "bars":
        yield from _bars(chart, frame)
    else:
        for number, series in enumerate(chart.series):
            yield from _line(series, frame, number)


def _top(chart: Chart) -> float:
    """The highest value to show. A prediction far above the data is cut off at the frame's edge."""
    if chart.kind == "stacked":
        return 1.0
    top = max((max(s.high or s.y, default=0.0) for s in chart.series), default=0.0)
    if chart.band is not None:
        top = max(top, chart.band.low * 1.2, min(chart.band.high, top * 2))
    return top


def _frame(chart: Chart, y_high: float) -> Frame:
    if chart.ticks:
        return Frame(LEFT, -0.5, len(chart.ticks) - 0.5, y_high)
    every = [value for series in chart.series for value in series.x]
    low, high = min(every), max(every)
    if chart.kind == "bars":
        low = 0.0
        first = chart.series[0].x
        high += first[0] if first else 0.0
    return Frame(LEFT, low, high if high > low else low + 1.0, y_high)


def _legend(chart: Chart) -> Iterator[str]:
    """One row of swatches and names under the title."""
    entries = [(f"s{number}", series.name) for number, series in enumerate(chart.series)]
    if chart.band is not None:
        entries.append(("band", chart.band.name))
    at = 12.0
    for css, name in entries:
        yield f'<rect class="{css} swatch" x="{at:.1f}" y="34" width="11" height="11" rx="2"/>'
        yield f'<text class="label" x="{at + 16:.1f}" y="44">{escape(name)}</text>'
        at += 16 + len(name) * CHARACTER + GAP


def _y_axis(chart: Chart, frame: Frame, marks: list[float]) -> Iterator[str]:
    for mark in marks:
        y = frame.y(mark)
        yield f'<line class="grid" x1="{frame.left}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        text = f"{mark:.0%}" if chart.kind == "stacked" else f"{mark:g}"
        yield f'<text class="tick" text-anchor="end" x="{frame.left - 7}" y="{y + 4:.1f}">{text}</text>'
    middle = (TOP + HEIGHT - BOTTOM) / 2
    yield (
        f'<text class="label" text-anchor="middle" transform="translate(15 {middle:.0f}) '
        f'rotate(-90)">{escape(chart.y_label)}</text>'
    )


def _x_axis(chart: Chart, frame: Frame) -> Iterator[str]:
    base = HEIGHT - BOTTOM
    yield f'<line class="axis" x1="{frame.left}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>'
    if chart.ticks:
        places = [(float(i), text) for i, text in enumerate(chart.ticks)]
    else:
        shown = (frame.x_high - frame.x_low) / frame.x_high  # of the axis from 0
        marks = ticks(frame.x_high, math.ceil(5 / max(shown, 0.1)))
        places = [(mark, f"{mark:g}") for mark in marks if frame.x_low <= mark <= frame.x_high]
    for value, text in places:
        x = frame.x(value)
        yield f'<text class="tick" text-anchor="middle" x="{x:.1f}" y="{base + 17}">{escape(text)}</text>'
    middle = (frame.left + WIDTH - RIGHT) / 2
    yield f'<text class="label" text-anchor="middle" x="{middle:.0f}" y="{HEIGHT - 13}">{escape(chart.x_label)}</text>'


def _line(series: Series, frame: Frame, number: int) -> Iterator[str]:
    points = [(frame.x(x), frame.y(y)) for x, y in zip(series.x, series.y, strict=True)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    if series.style != "points":
        yield f'<polyline class="s{number} stroke" points="{path}"/>'
    for i, (x, y) in enumerate(points):
        if series.low:
            low, high = frame.y(series.low[i]), frame.y(series.high[i])
            yield f'<line class="s{number} stroke thin" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
            for end in (low, high):
                yield f'<line class="s{number} stroke thin" x1="{x - 4:.1f}" x2="{x + 4:.1f}" y1="{end:.1f}" y2="{end:.1f}"/>'
        if series.style != "line" and len(points) <= 30:
            yield f'<circle class="s{number} fill" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'


def _bars(chart: Chart, frame: Frame) -> Iterator[str]:
    """Bars of several series side by side within each slice."""
    count = len(chart.series)
    for number, series in enumerate(chart.series):
        slice_width = (frame.x(2 * series.x[0]) - frame.x(0)) * 0.86
        width = slice_width / count
        for x, y in zip(series.x, series.y, strict=True):
            left = frame.x(x) - slice_width / 2 + number * width
            top = frame.y(y)
            yield (
                f'<rect class="s{number} fill" x="{left:.1f}" y="{top:.1f}" '
                f'width="{width:.1f}" height="{HEIGHT - BOTTOM - top:.1f}"/>'
            )


def _stacked(chart: Chart, frame: Frame) -> Iterator[str]:
    below = [0.0] * len(chart.series[0].x)
    for number, series in enumerate(chart.series):
        above = [low + y for low, y in zip(below, series.y, strict=True)]
        forth = [f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in zip(series.x, above, strict=True)]
        back = [f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in zip(series.x, below, strict=True)]
        yield f'<polygon class="s{number} fill" points="{" ".join([*forth, *reversed(back)])}"/>'
        below = above


def _shares(chart: Chart) -> Iterator[str]:
    """Horizontal bars with the label above each: labels of any length fit."""
    left, right = 16, WIDTH - 64
    room = min(66.0, (HEIGHT - 52 - BOTTOM) / max(1, len(chart.ticks)))
    for row, (text, share) in enumerate(zip(chart.ticks, chart.series[0].x, strict=True)):
        y = 52 + row * room
        bar = y + 14
        height = min(20.0, room - 22)
        full = right - left
        yield f'<text class="label" x="{left}" y="{y + 8:.1f}">{escape(text)}</text>'
        yield f'<rect class="rail" x="{left}" y="{bar:.1f}" width="{full}" height="{height:.1f}" rx="3"/>'
        width = full * max(0.0, min(1.0, share))
        yield f'<rect class="s0 fill" x="{left}" y="{bar:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3"/>'
        yield f'<text class="tick" x="{right + 8}" y="{bar + height / 2 + 4:.1f}">{share:.0%}</text>'
    below = 52 + len(chart.ticks) * room + 10
    yield f'<text class="label" x="{left}" y="{below:.1f}">{escape(chart.x_label)}, decode of one stream</text>'
