"""A result as one HTML page: no network, no scripts, light and dark. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any, cast

from glm53ctl.bench import verdict as verdicts
from glm53ctl.bench.charts import charts
from glm53ctl.bench.compare import figures, plain
from glm53ctl.bench.result import Result
from glm53ctl.bench.svg import draw
from glm53ctl.bench.text import machine_words, served_words
from glm53ctl.render import gib

_TONES = {verdicts.OK: "good", verdicts.SLOW: "warn", verdicts.TAINTED: "warn"}
_STYLE = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1b2330;--soft:#566173;--line:#dde2ea;
--s0:#2563b8;--s1:#c2571a;--s2:#2c8a57;--s3:#8a4fb0;--s4:#11737f;--good:#1d7a46;--warn:#9a6200;--bad:#b3261e;--band:#2563b822}
@media(prefers-color-scheme:dark){:root{--page:#12161c;--card:#1b2129;--ink:#e6eaf0;--soft:#9aa6b6;
--line:#323b47;--s0:#6ea8f0;--s1:#f0965c;--s2:#63c68f;--s3:#c79ae6;--s4:#63c7d4;--good:#63c68f;--warn:#e0ae4a;--bad:#f28b82;
--band:#6ea8f02e}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 20px 60px}h1{font-size:22px;margin:0 0 4px}
h2{font-size:16px;margin:30px 0 10px}p{margin:4px 0}.soft{color:var(--soft);font-size:13.5px}
.verdict{border-left:5px solid var(--tone);background:var(--card);padding:12px 16px;margin:16px 0;border-radius:4px}
.verdict b{color:var(--tone)}.good{--tone:var(--good)}.warn{--tone:var(--warn)}.bad{--tone:var(--bad)}
ul{margin:6px 0 0;padding-left:20px}.grid{display:grid;gap:16px;grid-template-columns:repeat(auto-fit,minmax(min(100%,500px),1fr))}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px}
figcaption{font-size:12.5px;color:var(--soft);padding:2px 12px 0}svg{display:block;width:100%;height:auto}
svg text{font-family:inherit;fill:var(--ink)}svg .title{font-size:15px;font-weight:600}
svg .label{font-size:12.5px;fill:var(--soft)}svg .tick{font-size:12px;fill:var(--soft)}
.grid line.grid,svg .grid{stroke:var(--line);stroke-width:1}svg .axis{stroke:var(--soft);stroke-width:1}
.s0{--c:var(--s0)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}.s4{--c:var(--s4)}.fill,.swatch{fill:var(--c)}
.stroke{stroke:var(--c);fill:none;stroke-width:2}.thin{stroke-width:1.3}rect.band{fill:var(--band);--c:var(--band)}
rect.rail{fill:var(--line)}.wide{overflow-x:auto}table{border-collapse:collapse;background:var(--card);width:100%;
border:1px solid var(--line);border-radius:8px;font-size:14px}th,td{text-align:left;padding:6px 12px;
border-bottom:1px solid var(--line);white-space:nowrap}th{color:var(--soft);font-weight:600}td.n{text-align:right;
font-variant-numeric:tabular-nums}th.n{text-align:right}pre{white-space:pre-wrap;word-break:break-word;font-size:12px}
code{font-size:13px}
"""


def page(result: Result) -> str:
    """The whole document."""
    title = f"glm53ctl bench: {result.verdict.name}"
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>",
            *_head(result),
            *_plots(result),
            "<h2>Figures</h2>",
            _figure_table(result),
            *_quality(result),
            *_context(result),
            "<h2>Everything</h2><details><summary>The result as JSON</summary>",
            f"<pre>{escape(json.dumps(json.loads(result.to_json()), indent=1))}</pre></details>",
            "</main></body></html>\n",
        ]
    )


def _head(result: Result) -> Iterator[str]:
    judged = result.verdict
    yield "<h1>Bench of one glm53ctl server</h1>"
    yield f'<p class="soft">{escape(served_words(result))}</p>'
    yield f'<p class="soft">{escape(machine_words(result))}</p>'
    if result.note:
        yield f'<p class="soft">{escape(result.note)}</p>'
    places = "".join(f"<li>{escape(place)}</li>" for place in judged.where)
    yield (
        f'<div class="verdict {_TONES.get(judged.name, "bad")}"><b>{escape(judged.name)}</b> '
        f"{escape(judged.why)}{f'<ul>{places}</ul>' if places else ''}</div>"
    )


def _plots(result: Result) -> Iterator[str]:
    yield '<div class="grid">'
    for chart in charts(result):
        note = f"<figcaption>{escape(chart.note)}</figcaption>" if chart.note else ""
        yield f"<figure>{draw(chart)}{note}</figure>"
    yield "</div>"


def _figure_table(result: Result) -> str:
    rows = [
        (f.name, f.text, f.unit, plain(f.low / f.scale), plain(f.high / f.scale), str(f.count))
        for f in figures(result)
    ]
    return _table(
        ("figure", "median", "unit", "lowest", "highest", "n"), rows, numbers={1, 3, 4, 5}
    )


def _quality(result: Result) -> Iterator[str]:
    panel = result.panel
    if panel is None or "error" in panel:
        return
    yield f"<h2>Panel {escape(panel['file'])}</h2>"
    prompts = cast("list[dict[str, Any]]", panel["per_prompt"])
    rows = [
        (str(one["i"]), str(one["positions"]), _plain(one["kl"]), _plain(one["top1"]),
         _plain(one["greedy_match"]))
        for one in prompts
    ]  # fmt: skip
    total = (
        "all",
        str(panel["positions"]),
        _plain(panel["mean_kl_top20"]),
        _plain(panel["top1_agreement"]),
        "",
    )
    columns = ("prompt", "positions", "mean KL, nats", "same top-1", "follows the answer")
    yield _table(columns, [*rows, total], numbers={1, 2, 3, 4})


def _context(result: Result) -> Iterator[str]:
    if not result.phases:
        return
    yield "<h2>The machine meanwhile</h2>"
    rows = [
        (one["phase"], f"{one['seconds']:.0f} s", f"{one['other_cpus']:.2f} of {one['cpus']}",
         f"{one['swap_bytes'] / 1e6:.0f} MB", gib(one["ram_available_bytes"]), _gpu_words(one["gpu"]))
        for one in result.phases
    ]  # fmt: skip
    columns = ("phase", "took", "CPUs used by others", "swapped", "RAM free", "GPU")
    yield _table(columns, rows, numbers={1, 2, 3, 4})
    for text in result.taints:
        yield f'<p class="soft">tainted: {escape(text)}</p>'


def _gpu_words(gpu: dict[str, Any] | None) -> str:
    if gpu is None:
        return "none used"
    parts = [
        (gpu.get("clocks_sm"), "{:.0f} MHz"),
        (gpu.get("temperature_gpu"), "{:.0f} °C"),
        (gpu.get("power_draw"), "{:.0f} W"),
        (gpu.get("pcie_link_gen_current"), "Gen{:.0f}"),
    ]
    return ", ".join(form.format(value) for value, form in parts if value is not None)


def _plain(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.4g}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]], *, numbers: set[int]) -> str:
    def cells(tag: str, row: tuple[str, ...]) -> str:
        return "".join(
            f"<{tag}{' class=n' if i in numbers else ''}>{escape(cell)}</{tag}>"
            for i, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{cells("th", head)}</tr>{body}</table></div>'
