"""One instance in a few lines: its record, its /stats, and what follows from both. Pure but for the fetch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, cast

from glm53ctl.errors import NotRunning, Unhealthy
from glm53ctl.plan import ListenPlan
from glm53ctl.planner import LOOPBACK
from glm53ctl.render import Look
from glm53ctl.start_view import amount, duration

Record = dict[str, Any]
Stats = dict[str, Any]
SCHEMA = "glm53ctl.status/1"
_MARKS = {
    "ready": ("●", "*", "green"),
    "stopped": ("○", "-", "dim"),
    "failed": ("✘", "x", "red"),
}
# Of parts that count much, what tells how it goes; --json has all of it.
_SHOWN = {
    "expert_cache": ("slots", "hit_rate", "decode_link_gb", "arena_gb"),
    "cpu_tier": ("isa", "threads", "cpu_experts", "host_busy_ms_per_job", "timeouts"),
}
_BUSY_MARK = ("◌", "~", "yellow")


def fetch_stats(record: Record, headers: dict[str, str], *, timeout_s: float = 3.0) -> Stats | None:
    """The /stats of a serving instance; None when it does not answer in time."""
    import httpx

    if record["phase"] != "ready":
        return None
    try:
        with httpx.Client(trust_env=False, verify=False, timeout=timeout_s) as http:
            body: object = http.get(f"{record['url']}/stats", headers=headers).json()
    except (httpx.HTTPError, ValueError):
        return None
    if not isinstance(body, dict):
        return None
    stats: Stats = dict(cast("Stats", body))
    stats["read_at_s"] = time.monotonic()
    return stats


def tokens_per_s(before: Stats | None, after: Stats | None) -> float | None:
    """Generated tokens per second between two readings; None when it cannot be told."""
    if before is None or after is None or "completion_tokens" not in after:
        return None
    tokens: int = after["completion_tokens"] - before["completion_tokens"]
    elapsed_s: float = after["read_at_s"] - before["read_at_s"]
    return tokens / elapsed_s if elapsed_s > 0 and tokens >= 0 else None


def status_lines(
    record: Record, stats: Stats | None, rate: float | None, look: Look
) -> Iterator[str]:
    """What `glm53ctl status` prints of the instance itself."""
    yield headline(record, look)
    phase, failure = record["phase"], record["last_failure"]
    if phase == "ready" and stats is not None:
        yield "  now      " + now_words(stats, rate)
        yield from _counters(stats)
    elif phase == "ready":
        yield "  now      /stats does not answer"
    if record["retry_in_s"] is not None:
        yield f"  retry    in {record['retry_in_s']:.0f} s, {record['crashes']} crashes in a row"
    if failure is not None:
        proof = f" (proof: {failure['proof']})" if failure["proof"] else ""
        yield f"  last     {failure['kind']}: {failure['summary']}{proof}"
        if failure["hint"] and phase != "ready":
            yield f"  hint     {failure['hint']}"


def headline(record: Record, look: Look) -> str:
    """`default  ● serving 4h12m  glm-5.3-flash  fast  http://127.0.0.1:8080/v1  restarts 0`."""
    phase = record["phase"]
    symbol, plain, colour = _MARKS.get(phase, _BUSY_MARK)
    stalled = record["health"] == "stalled"
    words = f"stalled: {record['health_words']}" if stalled else _phase_words(record)
    mark = look.paint(symbol if look.unicode else plain, "red" if stalled else colour)
    line = f"{record['instance']}  {mark} {words}"
    if phase not in {"stopped", "failed"}:
        model = f"  {record['model']}" if record.get("model") else ""
        line += f"{model}  {record['mode']}  {record['url']}/v1  restarts {record['restarts']}"
    return line


def exposure(listen: ListenPlan) -> str | None:
    """Who else reaches the port, and the key they need; None on loopback without a key."""
    key = f"key in {listen.api_key_file}" if listen.api_key_file else "no key"
    if listen.host in LOOPBACK:
        return f"this machine only, {key}" if listen.api_key_file else None
    return f"{listen.host or '0.0.0.0'}: other machines reach it, {key}"


def _phase_words(record: Record) -> str:
    phase, took = record["phase"], duration(record["phase_s"])
    if phase == "ready":
        return f"serving {took}"
    if phase == "starting" and record["progress"]:
        progress = record["progress"]
        return f"starting {took}, {progress['phase']} {amount(progress['done'], progress['total'])}"
    if phase in {"stopped", "failed"}:
        return phase
    return f"{phase} {took}"


def now_words(stats: Stats, rate: float | None) -> str:
    """`1 running, 0 queued · 14.1 tok/s`."""
    words = f"{stats.get('running', '?')} running, {stats.get('queued', '?')} queued"
    return words if rate is None else f"{words} · {rate:.1f} tok/s"


def _counters(stats: Stats) -> Iterator[str]:
    """Totals, then each enabled part of the engine as it reports itself."""
    totals = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "steps")
    found = [f"{stats[name]} {name.replace('_', ' ')}" for name in totals if name in stats]
    if found:
        yield "  total    " + ", ".join(found)
    for name, part in stats.items():
        parts = cast("list[object]", part) if isinstance(part, list) else [part]
        for item in parts:
            plain = list(_plain(name, cast("Stats", item))) if isinstance(item, dict) else []
            if plain:
                yield f"  {name:<8} " + ", ".join(plain)


def _plain(name: str, part: Stats) -> Iterator[str]:
    """The numbers and words of one part; rates of hits read as percentages."""
    for key in _SHOWN.get(name, tuple(part)):
        value = part.get(key)
        words = key.replace("_", " ")
        if "hit_rate" in key and isinstance(value, int | float):
            yield f"{words} {value:.0%}"
        elif isinstance(value, int | float | str):
            yield f"{words} {value}"


def document(record: Record, stats: Stats | None, rate: float | None) -> dict[str, Any]:
    """The JSON of `status --json`."""
    return {
        "schema": SCHEMA,
        "ok": exit_code(record) == 0,
        **record,
        "tokens_per_s": rate,
        "stats": stats,
        "status_exit_code": exit_code(record),
    }


def exit_code(record: Record) -> int:
    """0 running, 3 not running, 9 stalled or given up after too many crashes."""
    failure = record["last_failure"]
    if record["health"] == "stalled":
        return Unhealthy.exit_code
    if record["phase"] == "failed":
        gave_up = failure is not None and failure["exit_code"] == Unhealthy.exit_code
        return Unhealthy.exit_code if gave_up else NotRunning.exit_code
    return NotRunning.exit_code if record["phase"] == "stopped" else 0
