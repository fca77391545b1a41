"""Measured decode speed against what the measured parts of the machine allow. Pure.

A token needs expert weights that VRAM does not hold. The link (and the CPU tier, where there is one)
bring or compute a measured number of bytes per second: that over the bytes of a token is the roof.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from glm53ctl.bench.chart import Chart, Series
from glm53ctl.bench.result import Facts, Result

ROOF_POINTS = 40


def shares(result: Result) -> Chart | None:
    """One bar per part: how much of its ceiling decode of one stream used."""
    rows = list(ceiling_rows(result))
    if not rows:
        return None
    return Chart(
        "ceilings", "Measured against the ceiling", "shares", "share of the ceiling", "",
        (Series("measured", tuple(share for _, share in rows), tuple(map(float, range(len(rows))))),),
        ticks=tuple(label for label, _ in rows),
    )  # fmt: skip


def ceiling_rows(result: Result) -> Iterator[tuple[str, float]]:
    """(what, share of its ceiling) for decode of one stream."""
    prediction, rate = result.prediction, _rates(result).get(1)
    if rate is None or prediction is None:
        return
    best = prediction["high_tokens_per_s"]
    yield f"decode: {rate:.1f} of {best:.1f} tok/s", rate / best
    parts = (
        ("RAM", "ram_read_bytes_per_s", prediction.get("bytes_per_token")),
        ("link", "h2d_bytes_per_s", bytes_per_token(result.samples, 1, "admitted")),
        ("CPU tier", "tier_bytes_per_s", bytes_per_token(result.samples, 1, "cpu_experts")),
    )
    for name, key, per_token in parts:
        ceiling = result.measured.get(key)
        if ceiling and per_token:
            used = rate * per_token
            yield f"{name}: {used / 1e9:.1f} of {ceiling / 1e9:.1f} GB/s", used / ceiling


def roofline(result: Result) -> Chart | None:
    """tok/s over the bytes a token needs from outside VRAM, below the roof of the measured rates."""
    roof, name = _roof(result)
    points = list(_points(result))
    if roof is None or not points:
        return None
    on_cpu = name == "RAM"
    what = "weights read per token" if on_cpu else "expert weights per token that VRAM did not hold"
    unit, scale = ("GB", 1e9) if max(x for _, x, _ in points) >= 1e9 else ("MB", 1e6)
    low, high = 0.6 * min(x for _, x, _ in points), 1.5 * max(x for _, x, _ in points)
    steps = [low + (high - low) * i / (ROOF_POINTS - 1) for i in range(ROOF_POINTS)]
    curve = Series(
        f"roof: {name} at {roof / 1e9:.0f} GB/s",
        tuple(x / scale for x in steps),
        tuple(roof / x for x in steps),
        style="line",
    )
    measured = (
        Series(f"C{streams}", (x / scale,), (rate,), style="points") for streams, x, rate in points
    )
    return Chart(
        "roofline", "Decode speed under the roofline", "line",
        f"{unit} of {what}", "tok/s, all streams",
        (curve, *measured),
        note="C2: two streams at once. What is missing to the roof is everything but moving or reading weights",
    )  # fmt: skip


def _roof(result: Result) -> tuple[float | None, str]:
    """Bytes per second at which missing weights can arrive or be computed, and by what."""
    measured = result.measured
    if (result.prediction or {}).get("bytes_per_token"):
        return measured.get("ram_read_bytes_per_s"), "RAM"
    link, tier = measured.get("h2d_bytes_per_s"), measured.get("tier_bytes_per_s")
    if link and tier and any(one.get("cpu_experts") for one in result.samples):
        return link + tier, "link and CPU"
    return link, "link"


def _points(result: Result) -> Iterator[tuple[int, float, float]]:
    """(streams, bytes per token from outside VRAM, tok/s) of every measured concurrency."""
    fixed = (result.prediction or {}).get("bytes_per_token")
    for streams, rate in _rates(result).items():
        found = fixed or bytes_per_token(result.samples, streams, "misses")
        if found:
            yield streams, found, rate


def _rates(result: Result) -> dict[int, float]:
    """Median tok/s of all streams together, by their number."""
    decode = cast("dict[str, Facts]", (result.sweep or {}).get("decode") or {})
    return {
        int(name[1:]): one["aggregate"]["median"]
        for name, one in decode.items()
        if name[1:].isdigit()
    }


def bytes_per_token(samples: tuple[Facts, ...], streams: int, counter: str) -> float | None:
    """Bytes of the experts that `counter` counted, per token, while that many streams decoded.

    The first sample of a stretch is left out: the server's counters are up to a second old.
    """
    counted = tokens = 0
    slot_bytes = 0
    for stretch in _stretches(samples, streams):
        first, last = stretch[1], stretch[-1]
        if first.get(counter) is None or not first.get("slot_bytes"):
            continue
        counted += last[counter] - first[counter]
        tokens += (last["decode_steps"] - first["decode_steps"]) * streams
        slot_bytes = first["slot_bytes"]
    return counted * slot_bytes / tokens if tokens > 0 else None


def _stretches(samples: tuple[Facts, ...], streams: int) -> Iterator[list[dict[str, Any]]]:
    """Runs of three or more samples of the sweep that saw that many streams."""
    found: list[dict[str, Any]] = []
    for one in [*samples, {}]:
        wanted = one.get("phase") == "sweep" and one.get("running") == streams
        if wanted and one.get("decode_steps") is not None:
            found.append(one)
            continue
        if len(found) >= 3:
            yield found
        found = []
