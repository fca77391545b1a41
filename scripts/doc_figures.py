"""The documents' tables of measured figures, filled from bench/results/*.json and from nothing else.

Of each schema the newest file counts. A row is (what, figure); a file adds its machine, date and
command. Files of other schemas are left out.
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
Facts = dict[str, Any]
Rows = Iterator[tuple[str, str]]
STREAMS = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Source:
    """One result file."""

    path: Path
    body: Facts

    @property
    def kind(self) -> str:
        """ "exact-speed" of schema "glm53ctl.bench.exact-speed/1"."""
        name = str(self.body.get("schema") or self.body.get("bench") or "unknown")
        return name.rpartition("/")[0].removeprefix("glm53ctl.").removeprefix("bench.") or name

    @property
    def date(self) -> str:
        return str(self.body.get("date") or self.body.get("created") or self.path.name)[:10]

    @property
    def command(self) -> str:
        """As it was called, without the place where the result went."""
        recorded = self.body.get("command") or f"python3 bench/{self.kind}.py"
        return re.sub(r" --(out|png|html) \S+", "", str(recorded))

    @property
    def machine(self) -> str:
        """The machine and what ran on it, as far as the file says."""
        found = self.body.get("machine") or {}
        cores = found.get("cores") or found.get("cpus")
        ram = found.get("ram_bytes") or found.get("ram_kib", 0) * 1024
        version, commit = (
            self.body.get("version") or self.body.get("glm53ctl"),
            self.body.get("commit"),
        )
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


def _decode(body: Facts, prefix: str) -> str:
    rates = [body[f"{prefix}_c{n}"]["tok_per_s"] for n in STREAMS if f"{prefix}_c{n}" in body]
    return " / ".join(f"{rate:.1f}" for rate in rates) + " tok/s"


def _prefills(body: Facts, mode: str) -> Rows:
    for name, found in body.items():
        if re.fullmatch(r"prefill_\d+", name):
            tokens = int(name.removeprefix("prefill_"))
            yield f"{mode}: prompt of {tokens:,} tokens", f"{found['tok_per_s']:,.0f} tok/s"


def _exact_speed(body: Facts) -> Rows:
    exact = body["exact"]
    yield "exact: decode, 1 / 2 / 4 streams, without look-ahead", _decode(exact, "decode")
    yield from _prefills(exact, "exact")
    if "stock_mcs" in body:
        stock, ours = body["stock_mcs"], body["exact_compare"]
        theirs = stock["decode_c1"]["tok_per_s"]
        yield (
            f"one stream, {stock['layers']} of 45 layers: exact against stock exllamav3 with CPU experts",
            f"{ours['decode_c1']['tok_per_s']:.1f} against {theirs:.1f} tok/s",
        )


def _exact_bits(body: Facts) -> Rows:
    checks = body["checks"]
    same = sum(check["bit_identical"] for check in checks)
    yield "exact: checks with bits identical to stock exllamav3", f"{same} of {len(checks)}"


def _fast_speed(body: Facts) -> Rows:
    if "exact_c1" in body:
        ahead = body.get("lookahead_experts", 0)
        yield (
            f"exact: decode, 1 / 2 / 4 streams, looking ahead by {ahead} experts per layer",
            _decode(body, "exact"),
        )
    yield "fast: decode, 1 / 2 / 4 streams", _decode(body, "fast")
    yield from _prefills(body, "fast")
    if "peak_rss_gib" in body:
        yield "fast: RAM of the server at its peak", f"{body['peak_rss_gib']:.0f} GiB"


def _fast_quality(body: Facts) -> Rows:
    found = body["fast"]
    for name, words in (("default_half", "half of the misses"), ("all_cpu", "every expert")):
        kl, same = found[name]["kl_mean"], found[name]["top1_agree"]
        yield (
            f"fast: decode with {words} on the CPU, against exact (tiny model, {found[name]['positions']} positions)",
            f"mean KL {kl:.1e}, same top token {same:.1%}",
        )
    same = "bit-identical" if found["prefill_bit_identical"] else "differs"
    yield "fast: prefill against exact (tiny model)", same


def _cpu_panel(body: Facts) -> Rows:
    kl, same = body["mean_kl_top20"], body["top1_agreement"]
    yield (
        f"cpu: tiny model against a panel of stock exllamav3, {body['positions']} positions",
        f"mean KL {kl:.1e}, same top token {same:.1%}",
    )


def _http_soak(body: Facts) -> Rows:
    for streams, words in ((1, "1 stream"), (8, "8 streams")):
        spent = body["overhead"].get(f"cpu_ms_per_event_{streams}_streams")
        if spent is not None:
            yield f"HTTP: CPU time per streamed event, {words}", f"{spent:.3f} ms"


def _bench(body: Facts) -> Rows:
    served = body.get("served") or {}
    where = f"{served.get('model')} in {served.get('mode')} mode: "
    yield where + "verdict of `glm53ctl bench`", str(body["verdict"]["name"])
    if panel := body.get("panel"):
        kl, same = panel["mean_kl_top20"], panel["top1_agreement"]
        yield where + "reference panel", f"mean KL {kl:.1e}, same top token {same:.1%}"
    decode = (body.get("sweep") or {}).get("decode") or {}
    for name, found in decode.items():
        rate = found["aggregate"]["median"]
        yield where + f"decode, {name.removeprefix('C')} streams", f"{rate:.1f} tok/s"


ROWS: dict[str, Callable[[Facts], Rows]] = {
    "fast-speed": _fast_speed,
    "exact-speed": _exact_speed,
    "exact-bits": _exact_bits,
    "fast-quality": _fast_quality,
    "bench": _bench,
    "cpu-panel": _cpu_panel,
    "http_soak": _http_soak,
}


def newest(folder: Path = RESULTS) -> dict[str, Source]:
    """The newest result of each kind; names begin with the date."""
    found: dict[str, Source] = {}
    for path in sorted(folder.glob("*.json")):
        source = Source(path, json.loads(path.read_text(encoding="utf-8")))
        found[source.kind] = source
    return found


def table(sources: dict[str, Source]) -> str:
    """The Markdown between the README's markers."""
    shown = [(kind, sources[kind]) for kind in ROWS if kind in sources]
    lines = ["| measured | figure | source |", "|---|---|---|"]
    for number, (kind, source) in enumerate(shown, start=1):
        lines += [f"| {what} | {figure} | {number} |" for what, figure in ROWS[kind](source.body)]
    lines.append("")
    for number, (_, source) in enumerate(shown, start=1):
        file = f"bench/results/{source.path.name}"
        lines.append(
            f"{number}. {source.date}, {source.machine}; `{source.command}`; [{source.path.name}]({file})"
        )
    return "\n".join(lines)


def quality_table(sources: dict[str, Source]) -> str:
    """Fast mode's deviation from exact, for docs/modes.md."""
    source = sources["fast-quality"]
    lines = [
        "| what the CPU computed | mean KL (nats) | 99th percentile | largest | same top token |",
        "|---|---|---|---|---|",
    ]
    found = source.body["fast"]
    for name, words in (
        ("control_off_off", "nothing (control)"),
        ("default_half", "half of the misses"),
        ("all_cpu", "every expert"),
    ):
        one = found[name]
        kls = (f"{one[key]:.1e}" if one[key] else "0" for key in ("kl_mean", "kl_p99", "kl_max"))
        lines.append(f"| {words} | {' | '.join(kls)} | {one['top1_agree']:.1%} |")
    margins = [
        m for name in ("default_half", "all_cpu") for m in found[name]["disagree_margins_nats"]
    ]
    file = f"bench/results/{source.path.name}"
    return "\n".join(
        [
            *lines,
            "",
            f"Where the top token differed, the two best were at most {max(margins, default=0.0):.3f} nats apart.",
            f"{source.date}, {source.machine}; tiny checkpoint, {one['positions']} positions, whole vocabulary;",
            f"`{source.command}`; [{source.path.name}](../{file}).",
        ]
    )
