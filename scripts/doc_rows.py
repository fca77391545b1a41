"""What each kind of result file says, as rows of (what, figure) for the documents' tables.

A row's figure comes from the file and from nothing else; a kind that is not in ROWS has no rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from glm53ctl.bench.text import model_words

ISAS = {"avx2": "AVX2", "avx512": "AVX-512", "scalar": "scalar"}
LONG_SOAK_REQUESTS = 1000  # shorter runs are for the overhead only
Facts = dict[str, Any]
Rows = Iterator[tuple[str, str]]


def _decode(body: Facts, prefix: str, what: str, suffix: str = "") -> Rows:
    """One row for prefix_c1, prefix_c2 ...: tok/s of all streams together."""
    names = {n: f"{prefix}_c{n}{suffix}" for n in range(1, 9)}
    found = {n: body[name] for n, name in names.items() if name in body}
    if found:
        rates = " / ".join(f"{one['tok_per_s']:.1f}" for one in found.values())
        streams = " / ".join(map(str, found)) + (" stream" if list(found) == [1] else " streams")
        yield f"{what}: decode, {streams}", f"{rates} tok/s"


def _prefills(body: Facts, what: str) -> Rows:
    for name, found in body.items():
        if match := re.fullmatch(r"prefill_(\d+)(?:_chunk_(\d+))?", name):
            chunks = f" in chunks of {int(match[2]):,}" if match[2] else ""
            yield (
                f"{what}: prompt of {int(match[1]):,} tokens{chunks}",
                f"{found['tok_per_s']:,.0f} tok/s",
            )


def _ahead(body: Facts) -> Rows:
    """Look-ahead by n experts per layer in single-stream decode, an option."""
    for mode in ("exact", "fast"):
        for name, found in sorted(body.items()):
            if match := re.fullmatch(rf"{mode}_c1_lookahead_(\d+)", name):
                yield (
                    f"{mode}: decode, 1 stream, with look-ahead by {match[1]}",
                    f"{found['tok_per_s']:.1f} tok/s",
                )


def _exact_speed(body: Facts) -> Rows:
    yield from _decode(body["exact"], "decode", "exact")
    yield from _prefills(body["exact"], "exact")
    if "stock_mcs" in body:
        stock, ours = body["stock_mcs"], body["exact_compare"]
        theirs = stock["decode_c1"]["tok_per_s"]
        yield (
            f"{stock['layers']} of 45 layers, 1 stream: exact against stock exllamav3 with CPU experts",
            f"{ours['decode_c1']['tok_per_s']:.1f} against {theirs:.1f} tok/s",
        )


def _exact_bits(body: Facts) -> Rows:
    checks = body["checks"]
    same = sum(check["bit_identical"] for check in checks)
    yield "exact: checks with bits identical to stock exllamav3", f"{same} of {len(checks)}"


def _fast_speed(body: Facts) -> Rows:
    for name, run in body.get("runs", {body.get("isa", ""): body}).items():
        isa = ISAS.get(name.partition("_")[0], "")
        kernels = f"fast with {isa} kernels" if isa else "fast"
        yield from _decode(run, "fast", kernels)
        yield from _decode(run, "exact", f"exact, in the same run as {kernels}")
        yield from _ahead(run)
        yield from _prefills(run, "fast")
    for mode in ("fast", "exact"):
        yield from _decode(body, mode, f"{mode}, nothing looked ahead", "_no_lookahead")
    for name, streams in (("", "1 stream"), ("_c2", "2 streams"), ("_c4", "4 streams")):
        if ceiling := body.get(f"model_ceiling{name}"):
            yield (
                f"fast, nothing looked ahead: {streams} against the {ceiling['tok_per_s']:.1f} tok/s that the measured lanes allow",
                f"{ceiling['measured_share']:.0%}",
            )
    load = body.get("load_s", {})
    if "touch" in load:
        moved = body["arena_gib"] * 1.073741824 / load["arena"]
        yield (
            f"{body['arena_gib']:.0f} GiB of experts: pages made, filled and pinned on a machine just started",
            f"{load['arena']:.1f} s, {moved:.1f} GB/s",
        )
    if "peak_rss_gib" in body:
        yield "fast: RAM of the server at its peak", f"{body['peak_rss_gib']:.0f} GiB"


def _stock_speed(body: Facts) -> Rows:
    rate = body["stock_mcs"]["decode_c1"]["tok_per_s"]
    yield "stock exllamav3 with CPU experts (-mcs 257), 1 stream, same picks", f"{rate:.1f} tok/s"


def _gpu_tests(body: Facts) -> Rows:
    passed = body["passed"]
    yield "tests on the GPU that passed", f"{passed} of {passed + len(body['failed'])}"


def _pin_rate(body: Facts) -> Rows:
    first, again = body["round_0"], body["round_1"]
    rates = ", ".join(f"{name} {first[key]:.0f} / {again[key]:.0f}" for name, key in _LOADING)
    yield "loading, GB/s on pages new to the virtual machine / used before", rates


_LOADING = (("first touch", "touch"), ("copy", "fill_touched"), ("pin", "pin_1_threads"))


def _decode_trace(body: Facts) -> Rows:
    for name, words in (("resident", "nothing misses"), ("exact", "exact"), ("fast", "fast")):
        found = body[f"{name}_trace"]
        yield (
            f"{body['layers']} layers, 1 stream, {words}: time per step under the profiler, GPU at work in it",
            f"{found['wall_ms_per_step']:.1f} ms, {found['busy_ms_per_step']:.1f} ms",
        )


def _fast_quality(body: Facts) -> Rows:
    found, model = body["fast"], body.get("checkpoint", "tiny model")
    isa = ISAS.get(found["isa"], found["isa"])
    for name, words in (("default_half", "half of the misses"), ("all_cpu", "every miss")):
        kl, same = found[name]["kl_mean"], found[name]["top1_agree"]
        yield (
            f"fast with {isa} kernels against exact: {model}, {found[name]['positions']} positions, {words} on the CPU ({found[name]['cpu_experts']:,} expert computations)",
            f"mean KL {kl:.1e}, same top token {same:.1%}",
        )
    same = "bit-identical" if found["prefill_bit_identical"] else "differs"
    yield f"fast with {isa} kernels against exact: prefill of the {model}", same


def _cpu_panel(body: Facts) -> Rows:
    kl, same = body["mean_kl_top20"], body["top1_agreement"]
    yield (
        f"cpu: tiny model against a panel of stock exllamav3, {body['positions']} positions",
        f"mean KL {kl:.1e}, same top token {same:.1%}",
    )


def _kl(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def _gpu_panel(body: Facts) -> Rows:
    kl, same = body["mean_kl_top20"], body["top1_agreement"]
    yield (
        f"{body['mode']} on the GPU, over HTTP: tiny model against a panel of stock exllamav3, {body['positions']} positions",
        f"mean KL {_kl(kl)}, same top token {same:.1%}",
    )


def _decode_kl(body: Facts) -> Rows:
    positions, control = body["positions"], body["control_off"]["kl_max"]
    yield (
        f"tiny model: decode without the CPU tier against itself, {positions} positions",
        f"largest KL {_kl(control)}",
    )
    yield (
        f"tiny model: decode of {positions} positions with the CPU tier as calibrated",
        f"mean KL {_kl(body['kl_mean'])}, same top token {body['top1_agree']:.1%}",
    )


def _cpu_kernels(body: Facts) -> Rows:
    """One core by its own time; and all threads by the clock, where the machine had the cores free."""
    where = re.sub(r"\((R|TM)\)| Processor", "", body["cpu"])
    weights = f"expert weights at {body['expert']['bits']} bits"
    most = max(rate["threads"] for rate in body["rates"])
    read = {r["threads"]: r["gb_s_median"] for r in body["rates"] if r["arm"] == "memory read"}
    for rate in body["rates"]:
        isa, _, precision = rate["arm"].partition(" ")
        if precision != "fast":
            continue
        kernels = f"CPU kernels, {ISAS[isa]}, {where}"
        if rate["threads"] == 1:
            own = rate["gb_s_per_core_median"]
            yield f"{kernels}, one core by its own time: {weights}", f"{own:.1f} GB/s"
        elif rate["threads"] == most and body["load_average_1min"] < body["cpus"] / 2:
            yield (
                f"{kernels}, {most} threads: {weights}, beside a plain read of memory",
                f"{rate['gb_s_median']:.1f} beside {read[most]:.1f} GB/s",
            )


def _http_soak(body: Facts) -> Rows:
    for streams, words in ((1, "1 stream"), (8, "8 streams")):
        spent = body["overhead"].get(f"cpu_ms_per_event_{streams}_streams")
        if spent is not None:
            yield f"HTTP: CPU time per streamed event, {words}", f"{spent:.3f} ms"
    hostile, streams = body.get("hostile") or {}, body.get("streams") or {}
    if hostile.get("requests", 0) >= LONG_SOAK_REQUESTS:
        figure = f"{hostile['server_errors']} of {hostile['requests']:,}"
        yield "HTTP: fuzzed and broken requests answered with a 5xx", figure
        yield (
            f"HTTP: /health while {streams['streams']} streams come and go for {streams['seconds']:.0f} s, 99th percentile",
            f"{streams['health_p99_ms']:.0f} ms",
        )


def _supervise_soak(body: Facts) -> Rows:
    yield "supervisor: injected faults judged wrongly", f"{len(body['wrong'])} of {body['faults']}"


def _bench(body: Facts) -> Rows:
    served, sweep = body["served"], body.get("sweep") or {}
    where = f"server over HTTP, {served['mode']} mode, {model_words(served['model'])}"
    if body.get("panel"):
        yield f"{where}: verdict of `glm53ctl bench`", str(body["verdict"]["name"])
    decode = {n[1:]: one for n, one in (sweep.get("decode") or {}).items() if n[1:].isdigit()}
    if decode:
        rates = " / ".join(f"{one['aggregate']['median']:.1f}" for one in decode.values())
        yield f"{where}: decode, {' / '.join(decode)} streams", f"{rates} tok/s"
    long = max(
        (body.get("stream") or {}).get("endpoints", []), key=lambda one: one["tokens"], default=None
    )
    if long and long.get("span_s"):
        yield (
            f"{where}: one answer of {long['tokens']} tokens as it arrives",
            f"{(long['tokens'] - 1) / long['span_s']:.1f} tok/s",
        )
    for tokens, found in (sweep.get("prefill") or {}).items():
        if "median" in found:
            wait = sweep["ttft_s"][tokens]["median"]
            figure = f"{found['median']:,.0f} tok/s, first token after {wait:.1f} s"
            yield f"{where}: prompt of {int(tokens):,} tokens", figure


def _tiny_suite(body: Facts) -> Rows:
    kinds, mode = body["kinds"], body["served"]["mode"]
    asked = ", ".join(kinds)
    each = next(iter(kinds.values()))["asked"]
    yield (
        f"tiny model, {mode}, {each} held-out questions of each kind answered rightly: {asked}",
        " / ".join(f"{kind['share']:.0%}" for kind in kinds.values()),
    )


ROWS: dict[str, Callable[[Facts], Rows]] = {
    "fast-speed": _fast_speed,
    "exact-speed": _exact_speed,
    "stock-speed": _stock_speed,
    "decode-trace": _decode_trace,
    "pin-rate": _pin_rate,
    "exact-bits": _exact_bits,
    "fast-quality": _fast_quality,
    "gpu-tests": _gpu_tests,
    "gpu-panel": _gpu_panel,
    "decode-kl": _decode_kl,
    "cpu-panel": _cpu_panel,
    "tiny-suite": _tiny_suite,
    "bench": _bench,
    "cpu_kernels": _cpu_kernels,
    "http_soak": _http_soak,
    "supervise-soak": _supervise_soak,
}
