"""Charts as PNG files, drawn by matplotlib when the [plots] extra is installed."""

from __future__ import annotations

import importlib
from itertools import product
from pathlib import Path
from typing import Any

from glm53ctl.bench.chart import Chart
from glm53ctl.errors import UsageError

THEMES: dict[str, dict[str, str]] = {
    "": {},
    "-dark": {
        **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "#1b2129"),
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"),
            "#e6eaf0",
        ),
        "grid.color": "#5b6675",
    },
}
COLOURS = ("#4a86d8", "#d9692a", "#3a9c66", "#a066c8", "#2a96a5")  # legible on both themes
WIDTH_IN, HEIGHT_IN, DOTS = 7.0, 4.2, 130
PALETTE = 128  # colours of a file


def write(charts: list[Chart], folder: Path, caption: str = "") -> list[Path]:
    """Two files per chart, light and dark, named after it; `caption` says what was measured.

    Raises UsageError without matplotlib.
    """
    try:
        library: Any = importlib.import_module("matplotlib")
        figures: Any = importlib.import_module("matplotlib.figure")
        canvases: Any = importlib.import_module("matplotlib.backends.backend_agg")
        images: Any = importlib.import_module("PIL.Image")
    except ImportError as err:
        raise UsageError(
            "PNG files need matplotlib", hint="pip install 'glm53ctl[plots]', or use --html"
        ) from err
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Path] = []
    for chart, (theme, settings) in product(charts, THEMES.items()):
        with library.rc_context(settings):
            figure = figures.Figure(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DOTS, layout="constrained")
            canvas = canvases.FigureCanvasAgg(figure)
            _draw(chart, figure.add_subplot(), caption)
            figure.supxlabel(chart.note, x=0.01, ha="left", fontsize=8, alpha=0.75)
            canvas.draw()
        path = folder / f"{chart.name}{theme}.png"
        drawn = images.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba())
        drawn.convert("RGB").quantize(PALETTE).save(path, optimize=True)  # a third of the size
        found.append(path)
    return found


def _draw(chart: Chart, axes: Any, caption: str) -> None:
    axes.set_title(chart.title, loc="left", fontsize=12, pad=20)
    axes.annotate(
        caption, (0, 1), xytext=(0, 6), xycoords="axes fraction", textcoords="offset points",
        fontsize=8, alpha=0.75,
    )  # fmt: skip
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if chart.kind == "shares":
        _shares(chart, axes)
        return
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if chart.kind == "stacked":
        axes.stackplot(
            chart.series[0].x, *(one.y for one in chart.series),
            labels=[one.name for one in chart.series], colors=COLOURS,
        )  # fmt: skip
        axes.yaxis.set_major_formatter("{x:.0%}")
    elif chart.kind == "bars":
        _bars(chart, axes)
    else:
        _lines(chart, axes)
    axes.set_ylim(bottom=0)
    if chart.ticks:
        axes.set_xticks(range(len(chart.ticks)), chart.ticks)
    entries = len(chart.series) + (chart.band is not None)
    axes.legend(loc="lower left", bbox_to_anchor=(0, -0.33), ncols=entries, frameon=False)


def _lines(chart: Chart, axes: Any) -> None:
    top = max((max(one.high or one.y) for one in chart.series), default=1.0)
    if chart.band is not None:
        axes.axhspan(
            chart.band.low, chart.band.high, color=COLOURS[0], alpha=0.2, label=chart.band.name
        )
        axes.set_ylim(0, max(top * 1.15, chart.band.low * 1.2, min(chart.band.high, top * 2)))
    for colour, one in zip(COLOURS, chart.series, strict=False):
        spread = None
        if one.low:
            spread = (
                [y - low for y, low in zip(one.y, one.low, strict=True)],
                [high - y for y, high in zip(one.y, one.high, strict=True)],
            )
        axes.errorbar(
            one.x, one.y, yerr=spread, color=colour, capsize=4, label=one.name,
            marker="" if one.style == "line" else "o", linestyle="" if one.style == "points" else "-",
        )  # fmt: skip


def _bars(chart: Chart, axes: Any) -> None:
    for number, (colour, one) in enumerate(zip(COLOURS, chart.series, strict=False)):
        step = 2 * one.x[0] * 0.86
        width = step / len(chart.series)
        places = [x - step / 2 + (number + 0.5) * width for x in one.x]
        axes.bar(places, one.y, width=width, color=colour, label=one.name)


def _shares(chart: Chart, axes: Any) -> None:
    shares = chart.series[0].x
    bars = axes.barh(chart.ticks, shares, color=COLOURS[0], height=0.5)
    axes.bar_label(bars, [f"{share:.0%}" for share in shares], padding=4)
    axes.set_xlim(0, max(1.1, *shares) if shares else 1.1)
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
