"""The documents' tables of measured figures, filled from bench/results/*.json and from nothing else.

A file is DATE-NAME.json; of each name the newest counts, and of two files with the same row the one
that was recorded last. A row is (what, figure); a file adds its machine, date and command. Files of
schemas without rows here are left out.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from doc_rows import ISAS, ROWS, Facts

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
# What the README shows; docs/benchmarks.md has every row.
HEADLINES = frozenset(
    {
        "fast-speed",
        "stock-speed",
        "exact-bits",
        "gpu-panel",
        "decode-kl",
        "server-fast",
        "cpu-panel",
    }
)
_NO_FIGURE = re.compile(r"\b(None|nan|inf)\b")


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


def table(sources: list[Source], to_root: str = "", names: frozenset[str] | None = None) -> str:
    """The Markdown between a page's markers: every row, or those of some files by name."""
    lines = ["| measured | figure | source |", "|---|---|---|"]
    shown = [pair for pair in latest_rows(sources) if names is None or pair[0].name in names]
    sources = [source for source, _ in shown]
    for number, (_, rows) in enumerate(shown, start=1):
        lines += [f"| {what} | {figure} | {number} |" for what, figure in rows]
    notes = [f"{number}. {source.cite(to_root)}" for number, source in enumerate(sources, start=1)]
    return "\n".join([*lines, "", *notes])


def quality_table(sources: list[Source]) -> str:
    """Fast mode's deviation from exact, for docs/modes.md."""
    lines = [
        "| model, CPU kernels | what the CPU computed | mean KL (nats) | 99th percentile | largest | same top token |",
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
            model = source.body.get("checkpoint", "bundled tiny checkpoint")
            words = f"{words} ({one['cpu_experts']:,} expert computations)"
            lines.append(f"| {model}, {isa} | {words} | {kls} | {one['top1_agree']:.1%} |")
    lines += [
        "",
        f"{' or '.join(map(str, sorted(positions)))} positions, whole vocabulary. Where the top token",
        f"differed, the two best were at most {max(margins, default=0.0):.3f} nats apart.",
        "",
    ]
    return "\n".join(lines + [f"* {source.cite('../')}" for source in cited])
