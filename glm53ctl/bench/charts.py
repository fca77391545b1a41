"""Which plots a result has, as plain values. Two renderers draw them: `svg` for pages, `png_files`.

A plot whose data a run does not have (tiers of a GPU on a host without one) is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from glm53ctl.bench.ceilings import roofline, shares
from glm53ctl.bench.chart import Band, Chart, Series
from glm53ctl.bench.result import Facts, Result

WINDOW_S = 2.0
WINDOW_STEPS = 10  # fewer say more about when the server counted than about the tiers


def charts(result: Result) -> list[Chart]:
    """The plots of a result, in reading order."""
    sweep = result.sweep or {}
    makers = (
        _throughput(sweep, result.prediction),
        _first_token(sweep),
        shares(result),
        roofline(result),
        _delivery(result.stream),
        _tiers(result.samples),
        _lanes(result),
    )
    return [chart for chart in makers if chart is not None]


def _throughput(sweep: Facts, prediction: Facts | None) -> Chart | None:
    decode = cast("dict[str, Facts]", sweep.get("decode") or {})
    found = [(name, one) for name, one in decode.items() if name[1:].isdigit()]
    if not found:
        return None
    places = tuple(float(i) for i in range(len(found)))
    band = None
    if prediction is not None:
        low, high = prediction["low_tokens_per_s"], prediction["high_tokens_per_s"]
        band = Band("predicted, one stream", low, high)
    return Chart(
        "throughput", "Decode speed by concurrency", "line", "streams at once", "tok/s",
        (_spread("all streams", places, [one["aggregate"] for _, one in found]),
         _spread("each stream", places, [one["per_stream_mean"] for _, one in found])),
        ticks=tuple(name[1:] for name, _ in found), band=band,
        note="median; whiskers: lowest and highest repetition",
    )  # fmt: skip


def _first_token(sweep: Facts) -> Chart | None:
    waits = cast("dict[str, Facts]", sweep.get("ttft_s") or {})
    if not waits:
        return None
    places = tuple(float(i) for i in range(len(waits)))
    return Chart(
        "first-token", "Time to first token by prompt length", "line", "prompt tokens", "seconds",
        (_spread("first token", places, list(waits.values())),), ticks=tuple(waits),
        note="median; whiskers: lowest and highest repetition",
    )  # fmt: skip


def _spread(name: str, places: tuple[float, ...], found: list[Facts]) -> Series:
    return Series(
        name, places, tuple(one["median"] for one in found),
        tuple(one["min"] for one in found), tuple(one["max"] for one in found),
    )  # fmt: skip


def _delivery(stream: Facts | None) -> Chart | None:
    found = [
        one
        for one in cast("list[Facts]", (stream or {}).get("endpoints", []))
        if one.get("bin_chars")
    ]
    if not found:
        return None
    series = tuple(
        Series(
            one["endpoint"],
            tuple((i + 0.5) * 100 / len(one["bin_chars"]) for i in range(len(one["bin_chars"]))),
            tuple(count / one["bin_s"] if one["bin_s"] else 0.0 for count in one["bin_chars"]),
        )
        for one in found
    )
    return Chart(
        "delivery", "Text delivered while it is generated", "bars",
        "part of the answer's time, %", "characters/s", series,
        note="flat: delivered as it is generated; a peak at the end: held back and flushed",
    )  # fmt: skip


def _tiers(samples: tuple[Facts, ...]) -> Chart | None:
    """Where the picked experts were found, second by second: VRAM, CPU tier, over the link."""
    rows: list[tuple[float, float, float, float]] = []
    for a, b in _windows(samples, "hits"):
        hits, misses = b["hits"] - a["hits"], b["misses"] - a["misses"]
        picks = hits + misses
        if picks > 0:
            cpu = min(misses, (b.get("cpu_experts") or 0) - (a.get("cpu_experts") or 0))
            rows.append((_middle(a, b), hits / picks, cpu / picks, (misses - cpu) / picks))
    if len(rows) < 2:
        return None
    times, hits, cpu, link = (tuple(column) for column in zip(*rows, strict=True))
    parts = [Series("VRAM hits", times, hits), Series("over the link", times, link)]
    if any(cpu):
        parts.insert(1, Series("CPU tier", times, cpu))
    return Chart(
        "tiers", "Where experts were found", "stacked", "seconds since the bench began",
        "share of picks in decode steps", tuple(parts),
    )  # fmt: skip


def _lanes(result: Result) -> Chart | None:
    """Milliseconds per MoE layer of a decode step: what the link and the CPU took, and all of it."""
    link: list[tuple[float, float]] = []
    cpu: list[tuple[float, float]] = []
    whole: list[tuple[float, float]] = []
    for a, b in _windows(result.samples, "decode_steps"):
        at, passes = _middle(a, b), (b["decode_steps"] - a["decode_steps"]) * b["layers"]
        each_ms = _link_ms_per_expert(b, result.measured)
        if passes <= 0 or each_ms is None:
            continue
        link.append((at, (b["admitted"] - a["admitted"]) * each_ms / passes))
        if (jobs := b.get("host_jobs", 0) - a.get("host_jobs", 0)) > 0:
            busy = [one["host_jobs"] * one["host_busy_ms_per_job"] for one in (a, b)]
            cpu.append((at, (busy[1] - busy[0]) / jobs))
        steps = b.get("steps", 0) - a.get("steps", 0)
        if steps > 0 and b["prefill_s"] == a["prefill_s"]:  # no prompt in between
            whole.append((at, (b["decode_s"] - a["decode_s"]) * 1e3 / steps / b["layers"]))
    if len(link) < 2:
        return None
    named = (("whole step / layers", whole), ("link lane", link), ("CPU lane", cpu))
    return Chart(
        "lanes", "Lane times per MoE layer", "line", "seconds since the bench began",
        "ms per layer of a decode step",
        tuple(Series(name, *_columns(points)) for name, points in named if points),
        note=f"{'both lanes run at the same time; ' if cpu else ''}the rest is attention, routing and"
        " VRAM; peaks of the whole step: a prompt was read too",
    )  # fmt: skip


def _link_ms_per_expert(sample: Facts, measured: Facts) -> float | None:
    """As the server calibrated it, or from the measured rate of the link."""
    if sample.get("link_ms_per_expert") is not None:
        return sample["link_ms_per_expert"]
    rate = measured.get("h2d_bytes_per_s")
    return sample["slot_bytes"] / rate * 1e3 if rate and sample.get("slot_bytes") else None


def _columns(points: list[tuple[float, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(x for x, _ in points), tuple(y for _, y in points)


def _middle(a: Facts, b: Facts) -> float:
    return (a["t_s"] + b["t_s"]) / 2


def _windows(
    samples: tuple[Facts, ...], name: str
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """First and last sample of every WINDOW_S and WINDOW_STEPS in which a counter moved: servers
    refresh their counters at moments of their own, so that neighbouring samples would jitter."""
    first: dict[str, Any] | None = None
    for one in samples:
        if one.get(name) is None:
            continue
        if first is None or one[name] == first[name]:
            first = one  # nothing happened: a window begins with work
            continue
        steps = one["decode_steps"] - first["decode_steps"]
        if one["t_s"] - first["t_s"] >= WINDOW_S and steps >= WINDOW_STEPS:
            yield first, one
            first = one
