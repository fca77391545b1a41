"""The table of figures: rows come from result files, the newest of a kind, each with its source."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
MACHINE = {"gpu": "NVIDIA Example", "driver": "580.1", "cpu": "Example CPU", "ram_kib": 128 << 20}


@pytest.fixture
def figures(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("doc_figures")


def rate(tokens_per_s: float) -> dict:
    return {"tok_per_s": tokens_per_s, "ms_per_step": 1.0}


def write(folder: Path, date: str, kind: str, **body) -> None:
    document = {
        "schema": f"glm53ctl.bench.{kind}/1", "date": date, "machine": MACHINE,
        "command": f"python3 bench/gpu_{kind}.py --vram-gib 24 --out /somewhere/else", **body,
    }  # fmt: skip
    (folder / f"{date}-{kind}.json").write_text(json.dumps(document))


def fast_speed(first: float) -> dict:
    body = {f"exact_c{n}": rate(first + n) for n in (1, 2, 4)}
    body |= {f"fast_c{n}": rate(first + 10 * n) for n in (1, 2, 4)}
    body |= {"isa": "avx512", "prefill_32768": rate(1790.1), "fast_c1_share_0.4": rate(1)}
    return body | {"exact_c1_lookahead_2": rate(first)}


def test_rows_of_fast_speed(figures, tmp_path):
    write(tmp_path, "2030-01-02", "fast-speed", **fast_speed(20.0))
    table = figures.table(figures.newest(tmp_path))
    assert (
        "| fast with AVX-512 kernels: decode, 1 / 2 / 4 streams | 30.0 / 40.0 / 60.0 tok/s | 1 |"
        in table
    )
    assert "kernels: decode, 1 / 2 / 4 streams | 21.0 / 22.0 / 24.0 tok/s | 1 |" in table
    assert "| exact: decode, 1 stream, with look-ahead by 2 | 20.0 tok/s | 1 |" in table
    assert "| fast: prompt of 32,768 tokens | 1,790 tok/s | 1 |" in table


def test_a_file_of_several_runs_says_which_and_gives_its_note(figures, tmp_path):
    runs = {"avx2": {"fast_c1": rate(25.5)}, "avx512_more": {"fast_c2": rate(32.9)}}
    write(tmp_path, "2030-01-02", "fast-speed", runs=runs, note="Ended early.")
    table = figures.table(figures.newest(tmp_path))
    assert "| fast with AVX2 kernels: decode, 1 stream | 25.5 tok/s | 1 |" in table
    assert "| fast with AVX-512 kernels: decode, 2 streams | 32.9 tok/s | 1 |" in table
    assert table.endswith("Ended early.")


def test_the_newest_file_of_a_kind_counts_and_names_its_source(figures, tmp_path):
    write(tmp_path, "2030-01-01", "fast-speed", **fast_speed(900.0))
    write(tmp_path, "2030-01-02", "fast-speed", **fast_speed(20.0))
    table = figures.table(figures.newest(tmp_path))
    assert "910.0" not in table
    source = table.splitlines()[-1]
    assert source.startswith(
        "1. 2030-01-02, NVIDIA Example, driver 580.1, Example CPU, 128 GiB RAM; "
    )
    assert "`python3 bench/gpu_fast-speed.py --vram-gib 24`" in source
    assert "/somewhere/else" not in table
    assert source.endswith(
        "[2030-01-02-fast-speed.json](bench/results/2030-01-02-fast-speed.json)."
    )


def test_rows_of_the_panel_and_of_decode_kl_on_a_gpu(figures, tmp_path):
    found = {"mean_kl_top20": 0.0, "top1_agreement": 1.0, "positions": 768, "mode": "exact"}
    write(tmp_path, "2030-01-02", "gpu-panel", **found)
    fast = {"kl_mean": 1.1e-5, "kl_p99": 1e-4, "top1_agree": 0.995, "positions": 1536}
    write(tmp_path, "2030-01-02", "decode-kl", control_off={"kl_max": 0.0}, **fast)
    table = figures.table(figures.newest(tmp_path))
    panel = (
        "exact on the GPU, over HTTP: tiny model against a panel of stock exllamav3, 768 positions"
    )
    assert f"| {panel} | mean KL 0, same top token 100.0% | 1 |" in table
    assert (
        "decode without the CPU tier against itself, 1536 positions | largest KL 0 | 2 |" in table
    )
    assert "with the CPU tier as calibrated | mean KL 1.1e-05, same top token 99.5% | 2 |" in table


def test_a_row_of_the_suite_of_the_tiny_model(figures, tmp_path):
    kinds = {
        "facts": {"asked": 25, "right": 25, "share": 1.0},
        "calls": {"asked": 25, "right": 23, "share": 0.92},
    }
    write(tmp_path, "2030-01-02", "tiny-suite", kinds=kinds, served={"mode": "exact"})
    wanted = "| tiny model, exact, 25 held-out questions of each kind answered rightly: facts, calls | 100% / 92% | 1 |"
    assert wanted in figures.table(figures.newest(tmp_path))


def test_rows_of_a_bench_of_the_server(figures, tmp_path):
    sweep = {
        "decode": {"C1": {"aggregate": {"median": 21.9}}, "C2": {"aggregate": {"median": 23.9}},
                   "C1@8k": {"skipped": "too long"}},
        "prefill": {"8192": {"median": 990.2}, "65536": {"skipped": "too long"}},
        "ttft_s": {"8192": {"median": 8.27}},
    }  # fmt: skip
    body = {
        "schema": "glm53ctl.bench/1", "created": "2030-01-02T10:00:00+00:00", "machine": MACHINE,
        "version": "0.1.0", "commit": "76a1441", "command": "python3 bench/gpu_server.py --out x",
        "served": {"model": "dummy-45", "mode": "exact"}, "panel": None, "sweep": sweep,
        "stream": {"endpoints": [{"tokens": 101, "span_s": 4.0}, {"tokens": 90, "span_s": 3.0}]},
    }  # fmt: skip
    (tmp_path / "2030-01-02-server-exact.json").write_text(json.dumps(body))
    table = figures.table(figures.newest(tmp_path))
    where = "server over HTTP, exact mode, random weights, 45 layers"
    assert f"| {where}: decode, 1 / 2 streams | 21.9 / 23.9 tok/s | 1 |" in table
    assert f"| {where}: prompt of 8,192 tokens | 990 tok/s, first token after 8.3 s | 1 |" in table
    assert f"| {where}: one answer of 101 tokens as it arrives | 25.0 tok/s | 1 |" in table
    assert "verdict" not in table
    assert "glm53ctl 0.1.0, commit 76a1441; `python3 bench/gpu_server.py`;" in table


def test_of_two_files_with_the_same_row_the_later_one_counts(figures, tmp_path):
    """A short run after a long one takes its rows over; what only the long one has stays."""

    def soak(name: str, recorded: str, spent: float, requests: int) -> None:
        body = {
            "bench": "http_soak", "recorded": recorded, "machine": MACHINE,
            "overhead": {"cpu_ms_per_event_1_streams": spent},
            "hostile": {"requests": requests, "server_errors": 0},
            "streams": {"streams": 64, "seconds": 60, "health_p99_ms": 90.2},
        }  # fmt: skip
        (tmp_path / f"2030-01-02-{name}.json").write_text(json.dumps(body))

    soak("http-overhead", "2030-01-02T21:00:00+00:00", 0.042, 20)
    soak("http-soak", "2030-01-02T20:00:00+00:00", 0.062, 10_000)
    table = figures.table(figures.newest(tmp_path))
    assert "| HTTP: CPU time per streamed event, 1 stream | 0.042 ms | 1 |" in table
    assert "0.062" not in table
    assert "| HTTP: fuzzed and broken requests answered with a 5xx | 0 of 10,000 | 2 |" in table
    assert "for 60 s, 99th percentile | 90 ms | 2 |" in table
    assert "of 20 |" not in table


def test_cpu_kernels_of_two_machines_are_rows_of_their_own(figures, tmp_path):
    """The clock's rates count only where the cores were free."""

    def kernels(name: str, cpu: str, load: float) -> None:
        rates = [
            {"arm": arm, "threads": threads, "gb_s_median": threads * 2.0, "gb_s_per_core_median": 3.0}
            for arm in ("avx2 exact", "avx2 fast", "memory read")
            for threads in (1, 2)
        ]  # fmt: skip
        body = {
            "what": "cpu_kernels", "when": "2030-01-02T10:00:00+00:00", "cpu": cpu, "cpus": 4,
            "load_average_1min": load, "expert": {"bits": 3}, "rates": rates,
        }  # fmt: skip
        (tmp_path / f"2030-01-02-{name}.json").write_text(json.dumps(body))

    kernels("cpu-kernels", "AMD Example", 7.2)
    kernels("cpu-kernels-other-host", "Intel(R) Example(TM) Processor", 1.0)
    table = figures.table(figures.newest(tmp_path))
    own = "one core by its own time: expert weights at 3 bits | 3.0 GB/s"
    assert f"| CPU kernels, AVX2, AMD Example, {own} | 1 |" in table
    assert f"| CPU kernels, AVX2, Intel Example, {own} | 2 |" in table
    assert (
        "Intel Example, 2 threads: expert weights at 3 bits, beside a plain read of memory" in table
    )
    assert "| 4.0 beside 4.0 GB/s | 2 |" in table
    assert "AMD Example, 2 threads" not in table


def test_a_page_may_show_some_files_with_links_from_its_folder(figures, tmp_path):
    found = {"mean_kl_top20": 0.0, "top1_agreement": 1.0, "positions": 768, "mode": "exact"}
    write(tmp_path, "2030-01-02", "gpu-panel", **found)
    write(tmp_path, "2030-01-02", "fast-speed", **fast_speed(20.0))
    table = figures.table(figures.newest(tmp_path), "../", frozenset({"gpu-panel"}))
    assert "exact on the GPU, over HTTP" in table
    assert "tok/s" not in table
    assert "(../bench/results/2030-01-02-gpu-panel.json)" in table
    assert "| 2 |" not in table


def test_bit_identity_is_counted_not_claimed(figures, tmp_path):
    checks = [{"check": "a", "bit_identical": True}, {"check": "b", "bit_identical": False}]
    write(tmp_path, "2030-01-02", "exact-bits", checks=checks)
    assert "| 1 of 2 | 1 |" in figures.table(figures.newest(tmp_path))


def test_a_file_of_another_kind_is_left_out(figures, tmp_path):
    write(tmp_path, "2030-01-02", "something-new", value=7)
    assert "something-new" not in figures.table(figures.newest(tmp_path))


@pytest.mark.parametrize(
    ("kind", "body", "word"),
    [
        ("fast-speed", {"isa": "avx2"}, "no figure of its kind"),
        (
            "bench",
            {
                "served": {"model": "m", "mode": "cpu"},
                "panel": {"file": "p"},
                "verdict": {"name": ""},
            },
            "''",
        ),
        (
            "bench",
            {
                "served": {"model": "m", "mode": "cpu"},
                "panel": {"file": "p"},
                "verdict": {"name": None},
            },
            "None",
        ),
        ("fast-speed", {"isa": "avx2", "fast_c1": rate(float("nan"))}, "nan tok/s"),
    ],
)
def test_a_file_without_figures_is_refused(figures, tmp_path, kind, body, word):
    write(tmp_path, "2030-01-02", kind, **body)
    with pytest.raises(ValueError, match=word):
        figures.table(figures.newest(tmp_path))
