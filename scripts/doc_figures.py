"""The documents' tables of measured figures, filled from bench/results/*.json and from nothing else.

A file is DATE-NAME.json; of each name the newest counts, and of two files with the same row the one
that was recorded last. A row is (what, figure); a file adds its machine, date and command. Files of
schemas without rows here are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
_NO_FIGURE = re.compile(r"\b(None|nan|inf)\b")
ISAS = {"avx2": "AVX2", "avx512": "AVX-512", "scalar": "scalar"}
LONG_SOAK_REQUESTS = 1000  # shorter runs are for the overhead only
Facts = dict[str, Any]
Rows = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Source:
    """One result file."""

    path: Path
    body: Facts

    @property
    def name(self) -> str:
        """The file's name without its date: "fast-quality-avx2"."""
        return self.path.stem[len("2030-01-01-") :]

    @property
    def kind(self) -> str:
        """ "exact-speed" of the schema "glm53ctl.bench.exact-speed/1"."""
        body = self.body
        name = str(body.get("schema") or body.get("bench") or body.get("what") or "")
        return re.sub(r"^(glm53ctl\.)?(bench\.)?|/\d+$", "", name)

    @property
    def date(self) -> str:
        return self.path.stem[: len("2030-01-01")]

    @property
    def recorded(self) -> str:
        """When, to order files of one day; ISO 8601."""
        found = (self.body.get(key) for key in ("recorded", "created", "when", "date"))
        return next((str(text) for text in found if text), self.date)

    @property
    def command(self) -> str:
        """As it was called, without the place where the result went."""
        recorded = self.body.get("command") or f"python3 bench/{self.kind.replace('-', '_')}.py"
        return re.sub(r" --(out|png|html) \S+", "", str(recorded))

    @property
    def machine(self) -> str:
        """The machine and what ran on it, as far as the file says."""
        found = self.body.get("machine") or self.body
        cores = found.get("cores") or found.get("cpus")
        ram = found.get("ram_bytes") or found.get("ram_kib", 0) * 1024
        version = self.body.get("version") or self.body.get("glm53ctl")
        commit = self.body.get("commit")
        parts = [
            found.get("gpu"),
            f"driver {found['driver']}" if found.get("driver") else None,
            found.get("cpu"),
            f"{cores} cores" if cores else None,
            f"{ram / 2**30:.0f} GiB RAM" if ram else None,
            f"exllamav3 {found['exllamav3']}" if found.get("exllamav3") else None,
            f"glm53ctl {version}" if version else None,
            f"commit {commit}" if commit else None,
        ]
        return ", ".join(part for part in parts if part)

    def cite(self, to_root: str = "") -> str:
        """Date, machine, command, file; and that a note in the file says more, when there is one."""
        link = f"[{self.path.name}]({to_root}bench/results/{self.path.name})"
        note = f" {self.body['note']}" if self.body.get("note") else ""
        return f"{self.date}, {self.machine}; `{self.command}`; {link}.{note}"


def _decode(body: Facts, prefix: str, what: str) -> Rows:
    """One row for prefix_c1, prefix_c2 ...: tok/s of all streams together."""
    found = {n: body[f"{prefix}_c{n}"] for n in range(1, 9) if f"{prefix}_c{n}" in body}
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
    if "peak_rss_gib" in body:
        yield "fast: RAM of the server at its peak", f"{body['peak_rss_gib']:.0f} GiB"


def _fast_quality(body: Facts) -> Rows:
    found = body["fast"]
    isa = ISAS.get(found["isa"], found["isa"])
    for name, words in (("default_half", "half of the misses"), ("all_cpu", "every miss")):
        kl, same = found[name]["kl_mean"], found[name]["top1_agree"]
        yield (
            f"fast with {isa} kernels against exact: tiny model, {found[name]['positions']} positions, {words} on the CPU ({found[name]['cpu_experts']:,} expert computations)",
            f"mean KL {kl:.1e}, same top token {same:.1%}",
        )
    same = "bit-identical" if found["prefill_bit_identical"] else "differs"
    yield f"fast with {isa} kernels against exact: prefill of the tiny model", same


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
    for rate in body["rates"]:
        isa, _, precision = rate["arm"].partition(" ")
        if rate["threads"] == 1 and precision == "fast":
            yield (
                f"CPU kernels, {ISAS[isa]}, one core by its own time: expert weights at {body['expert']['bits']} bits",
                f"{rate['gb_s_per_core_median']:.1f} GB/s",
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
    model = re.sub(r"^dummy-(\d+)$", r"random weights, \1 layers", str(served["model"]))
    where = f"server over HTTP, {served['mode']} mode, {model}"
    if body.get("panel"):
        yield f"{where}: verdict of `glm53ctl bench`", str(body["verdict"]["name"])
    decode = {n[1:]: one for n, one in (sweep.get("decode") or {}).items() if n[1:].isdigit()}
    if decode:
        rates = " / ".join(f"{one['aggregate']['median']:.1f}" for one in decode.values())
        yield f"{where}: decode, {' / '.join(decode)} streams", f"{rates} tok/s"
    for tokens, found in (sweep.get("prefill") or {}).items():
        if "median" in found:
            wait = sweep["ttft_s"][tokens]["median"]
            figure = f"{found['median']:,.0f} tok/s, first token after {wait:.1f} s"
            yield f"{where}: prompt of {int(tokens):,} tokens", figure


ROWS: dict[str, Callable[[Facts], Rows]] = {
    "fast-speed": _fast_speed,
    "exact-speed": _exact_speed,
    "exact-bits": _exact_bits,
    "fast-quality": _fast_quality,
    "gpu-panel": _gpu_panel,
    "decode-kl": _decode_kl,
    "cpu-panel": _cpu_panel,
    "bench": _bench,
    "cpu_kernels": _cpu_kernels,
    "http_soak": _http_soak,
    "supervise-soak": _supervise_soak,
}


def newest(folder: Path = RESULTS) -> list[Source]:
    """The newest result of each name, in the order of ROWS."""
    found: dict[str, Source] = {}
    for path in sorted(folder.glob("*.json")):
        source = Source(path, json.loads(path.read_text(encoding="utf-8")))
        if source.kind in ROWS:
            found[source.name] = source
    order = list(ROWS)
    return sorted(found.values(), key=lambda source: (order.index(source.kind), source.name))


def rows_of(source: Source) -> list[tuple[str, str]]:
    """A file's rows. Raises ValueError for a file without any, and for a row without a figure."""
    rows = list(ROWS[source.kind](source.body))
    if not rows:
        raise ValueError(f"{source.path.name} has no figure of its kind, {source.kind}")
    for what, figure in rows:
        if not what.strip() or _NO_FIGURE.search(figure) or not figure.strip(" ,/"):
            raise ValueError(f"{source.path.name} has no figure for {what!r}: {figure!r}")
    return rows


def latest_rows(sources: list[Source]) -> list[tuple[Source, list[tuple[str, str]]]]:
    """Every row once, with the file that recorded it last; files left without a row are dropped."""
    found = [(source, rows_of(source)) for source in sources]
    owner: dict[str, Source] = {}
    for source, rows in sorted(found, key=lambda pair: (pair[0].date, pair[0].recorded)):
        owner |= dict.fromkeys((what for what, _ in rows), source)
    kept = [(source, [row for row in rows if owner[row[0]] is source]) for source, rows in found]
    return [(source, rows) for source, rows in kept if rows]


def table(sources: list[Source]) -> str:
    """The Markdown between the README's markers."""
    lines = ["| measured | figure | source |", "|---|---|---|"]
    shown = latest_rows(sources)
    sources = [source for source, _ in shown]
    for number, (_, rows) in enumerate(shown, start=1):
        lines += [f"| {what} | {figure} | {number} |" for what, figure in rows]
    notes = [f"{number}. {source.cite()}" for number, source in enumerate(sources, start=1)]
    return "\n".join([*lines, "", *notes])


def quality_table(sources: list[Source]) -> str:
    """Fast mode's deviation from exact, for docs/modes.md."""
    lines = [
        "| CPU kernels | what the CPU computed | mean KL (nats) | 99th percentile | largest | same top token |",
        "|---|---|---|---|---|---|",
    ]
    margins: list[float] = []
    positions: set[int] = set()
    cited = [source for source in sources if source.kind == "fast-quality"]
    for source in cited:
        found = source.body["fast"]
        for name, words in (
            ("control_off_off", "nothing (control)"),
            ("default_half", "half of the misses"),
            ("all_cpu", "every miss"),
        ):
            one = found[name]
            margins += one["disagree_margins_nats"]
            positions.add(one["positions"])
            kls = " | ".join(
                f"{one[k]:.1e}" if one[k] else "0" for k in ("kl_mean", "kl_p99", "kl_max")
            )
            isa = ISAS.get(found["isa"], found["isa"])
            words = f"{words} ({one['cpu_experts']:,} expert computations)"
            lines.append(f"| {isa} | {words} | {kls} | {one['top1_agree']:.1%} |")
    lines += [
        "",
        f"Tiny checkpoint, {' or '.join(map(str, sorted(positions)))} positions, whole vocabulary. Where the top token",
        f"differed, the two best were at most {max(margins, default=0.0):.3f} nats apart.",
        "",
    ]
    return "\n".join(lines + [f"* {source.cite('../')}" for source in cited])
