"""Verdicts, comparisons, host context, damage and plots of `glm53ctl bench`, without a server."""

from __future__ import annotations

import shutil
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from recorded_machines import phase, record
from typer.testing import CliRunner

from glm53ctl.bench import ceilings, compare, damage, png_files, report, svg, text, verdict
from glm53ctl.bench import charts as charting
from glm53ctl.bench import result as results
from glm53ctl.bench.result import Judged, Machine, Result, Served
from glm53ctl.bench.run import QUICK, Bench
from glm53ctl.bench.target import Target
from glm53ctl.checkpoint import open_checkpoint
from glm53ctl.errors import NotRunning, UsageError
from glm53ctl.paths import tiny_checkpoint
from glm53ctl.plan import Mode
from glm53ctl.predict import Prediction
from glm53ctl.render import Look
from glm53ctl.verbs import bench as bench_verb

PANEL = {
    "file": "p.json", "positions": 768, "expected_positions": 768, "mean_kl_top20": 1.6e-5,
    "top1_agreement": 0.9948,
    "per_prompt": [{"i": 3, "positions": 96, "kl": 0.8, "top1": 0.41, "greedy_match": 0.9}],
    "worst": [{"prompt": 3, "position": 17, "kl": 5.0}],
}  # fmt: skip
PREDICTION = Prediction(Mode.CPU, 30.0, 90.0, "RAM bandwidth", "RAM measured")
STREAM = {"pass": True, "endpoints": []}


def decide(**parts):
    found = {
        "mode": Mode.CPU, "panel": PANEL, "damaged": (), "stream": STREAM,
        "decode_tokens_per_s": 40.0, "prediction": PREDICTION, "taints": (), **parts,
    }  # fmt: skip
    return verdict.decide(verdict.Evidence(**found))


def test_a_right_and_fast_installation_is_ok():
    assert decide().name == "ok"
    assert "quality not checked" in decide(panel=None).why


@pytest.mark.parametrize(
    ("changed", "word"),
    [({"mean_kl_top20": 2e-4}, "mean KL 0.0002"), ({"mean_kl_top20": None}, "no numbers"),
     ({"top1_agreement": 0.98}, "top-1"), ({"positions": 767}, "767 of 768"),
     ({"error": "prompt 2: HTTP 500"}, "prompt 2: HTTP 500")],
)  # fmt: skip
def test_a_wrong_answer_fails_quality_and_says_where(changed, word):
    found = decide(panel=PANEL | changed, damaged=("damaged: layers.3",), decode_tokens_per_s=None)
    assert (found.name, found.exit_code, found.where) == (
        "quality failed",
        1,
        ("damaged: layers.3",),
    )
    assert word in found.why
    if "error" not in changed:
        assert "prompt 3 most: KL 0.8, top-1 0.410, worst at position 17 of prompt 3" in found.why


def test_the_gpu_modes_say_whether_they_are_identical():
    right = PANEL | {"mean_kl_top20": 0.0, "top1_agreement": 1.0}
    assert decide(mode=Mode.EXACT, panel=right).why.startswith("identical to the reference")
    assert "KL 1.6e-05 (0 only with the GPU model" in decide(mode=Mode.FAST).why
    assert decide(mode=Mode.EXACT, panel=right | {"mean_kl_top20": 2e-4}).name == "quality failed"


@pytest.mark.parametrize(
    ("found", "name"),
    [({"kl_mean": 0.0047, "top1_agree": 0.986}, "ok"), ({"kl_mean": 0.0063, "top1_agree": 0.986}, "quality failed"),
     ({"kl_mean": float("nan"), "top1_agree": 0.986}, "quality failed"), ({}, "ok"),
     ({"kl_mean": 0.0047, "top1_agree": 0.96}, "quality failed"), ({"control_off": {"kl_max": 1e-7}}, "quality failed")],
)  # fmt: skip
def test_fast_decoding_is_held_to_its_own_bars(found, name):
    assert verdict.decode_verdict({"control_off": {"kl_max": 0.0}, **found}).name == name


def test_bursts_outweigh_speed_and_name_the_endpoint():
    late = {"endpoint": "/generate", "pass": False, "half_share": 0.1, "tail_share": 0.6}
    found = decide(stream={"pass": False, "endpoints": [late]}, decode_tokens_per_s=1.0)
    assert (found.name, found.exit_code) == ("bursty", 1)
    assert "/generate delivers in bursts: 10%" in found.why


def test_a_sweep_that_failed_is_not_ok():
    found = decide(sweep_error="/generate: HTTP 500: out of pages")
    assert (found.name, found.exit_code) == ("incomplete", 1)
    assert "HTTP 500: out of pages" in found.why
    assert decide(sweep_error="x", panel=PANEL | {"mean_kl_top20": 1.0}).name == "quality failed"


def test_slow_is_only_called_slow_on_an_undisturbed_machine():
    assert decide(decode_tokens_per_s=23.0).name == "ok"
    slow = decide(decode_tokens_per_s=20.0)
    assert (slow.name, slow.exit_code, slow.advice) == ("slow", 0, True)
    assert "limited by RAM bandwidth" in slow.where[0]
    disturbed = decide(decode_tokens_per_s=20.0, taints=("swap",))
    assert (disturbed.name, disturbed.where) == ("tainted", ("swap",))
    assert disturbed.why.endswith("too slow, but the machine was disturbed, which may be why")
    good = decide(taints=("swap",))
    assert good.name == "ok"
    assert good.why == decide().why + ", although the machine was disturbed"


def test_a_server_that_went_away_gets_no_verdict(tmp_path):
    gone = Bench(
        Target("http://127.0.0.1:9"), record(tmp_path), QUICK, lambda _: None,
        measure_machine=False,
    )  # fmt: skip
    with pytest.raises(NotRunning):
        gone.run(gone.draft("glm53ctl bench"))


def spread(median, noise, n=3):
    values = [median - noise, median, median + noise]
    return {"median": median, "min": values[0], "max": values[-1], "n": n, "all": values}


def make(decode=40.0, *, noise=1.0, ram=10e9, **machine):
    return Result(
        created="2026-10-03T12:00:00+00:00", version="0.1.0", command="glm53ctl bench", seconds=90.0,
        machine=replace(Machine("AMD EPYC", 8, 64 << 30, "Debian, Linux 6"), **machine),
        served=Served("http://127.0.0.1:8080", "fast", "exl3", "glm", "8f3c2a"),
        measured={"h2d_bytes_per_s": 25e9, "ram_read_bytes_per_s": ram, "tier_bytes_per_s": None},
        verdict=Judged("ok", "quality as expected", ()),
        prediction={"low_tokens_per_s": 30.0, "high_tokens_per_s": 90.0, "bytes_per_token": 10**8},
        panel=PANEL,
        stream={"pass": True, "endpoints": [
            {"endpoint": name, "pass": True, "half_share": 0.5, "tail_share": 0.06, "bin_s": 0.5,
             "bin_chars": [20] * 20} for name in ("/v1/chat/completions", "/generate")]},
        sweep={
            "decode": {name: {"aggregate": spread(decode, noise), "per_stream_mean": spread(decode / 2, noise)}
                       for name in ("C1", "C2", "C4")},
            "prefill": {"512": spread(900.0, 9.0), "99999": {"skipped": "too long"}},
            "ttft_s": {"512": spread(0.6, 0.01)},
        },
        phases=(phase(),),
        samples=tuple(
            {"t_s": float(t), "phase": "sweep", "running": 1, "hits": 250 * t, "misses": 125 * t, "admitted": 50 * t, "slot_bytes": 10**7,
             "cpu_experts": 75 * t, "host_jobs": 25 * t, "link_ms_per_expert": 0.2,
             "host_busy_ms_per_job": 0.4, "layers": 5, "decode_steps": 5 * t,
             "steps": 5 * t, "decode_s": 0.05 * t, "prefill_s": 0.0}
            for t in range(6)
        ),
    )  # fmt: skip


def test_a_result_survives_its_file(tmp_path):
    result = make()
    first, second = results.save(result, tmp_path), results.save(result, tmp_path)
    assert results.read(first) == result
    assert results.saved(tmp_path) == sorted([first, second])
    assert first != second
    with pytest.raises(UsageError, match="has schema 'x'"):
        results.from_json('{"schema": "x"}', "f")
    with pytest.raises(UsageError, match="seconds"):
        results.from_json(result.to_json().replace('"seconds": 90.0', '"seconds": "no"'), "f")
    with pytest.raises(UsageError, match="is not a bench result"):
        results.from_json("[]", "f")


def test_a_change_counts_only_outside_both_spreads():
    def change(now, before):
        return {c.now.name: c for c in compare.changes(now, before)}

    drop = change(make(30.0), make(40.0))["decode C1"]
    assert (drop.worse, drop.words) == (True, "-25.0%  worse, outside noise")
    noisy = change(make(30.0, noise=8.0), make(40.0, noise=8.0))["decode C1"]
    assert (noisy.outside_noise, noisy.worse) == (False, False)
    small = change(make(41.0, noise=0.1), make(40.0, noise=0.1))["decode C1"]
    assert not small.outside_noise
    assert change(make(ram=8e9), make())["RAM read"].worse
    assert not change(make(ram=9.5e9), make())["RAM read"].outside_noise
    rise = compare.Change(
        *(compare.Figure("TTFT", m, m, m, 3, "s", more_is_better=False) for m in (2.0, 1.0))
    )
    assert rise.worse


@pytest.mark.parametrize(
    ("changed", "word"), [({"driver": "590.1"}, "driver"), ({"power_limit_w": 280.0}, "power cap"), ({"gpu": "B"}, "GPU")]
)  # fmt: skip
def test_results_of_different_machines_are_not_compared(changed, word):
    compare.check_comparable(make(), make(30.0))
    with pytest.raises(UsageError, match=word):
        compare.check_comparable(make(), make(**changed))
    now = make()
    old = replace(now, version="0.0.9", served=replace(now.served, plan="other"))
    with pytest.raises(UsageError, match=r"plan .* version 0\.0\.9 → 0\.1\.0"):
        compare.check_comparable(now, old)


def test_the_shipped_digests_are_those_of_the_bundled_checkpoint():
    checkpoint = open_checkpoint(tiny_checkpoint())
    assert damage.is_tiny(checkpoint)
    assert damage.damaged_tensors(checkpoint) == ()


def test_one_flipped_byte_is_found_by_name(tmp_path):
    folder = shutil.copytree(tiny_checkpoint(), tmp_path / "broken")
    name = "model.language_model.layers.3.self_attn.o_proj.trellis"
    tensor = open_checkpoint(folder).tensors[name]
    with tensor.file.open("r+b") as file:
        file.seek(tensor.offset + tensor.nbytes // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    assert damage.damaged_tensors(open_checkpoint(folder)) == (f"{name} ({tensor.file.name})",)


def test_all_plots_are_drawn_and_fit():
    found = charting.charts(make())
    assert [chart.name for chart in found] == [
        "throughput",
        "first-token",
        "ceilings",
        "roofline",
        "delivery",
        "tiers",
        "lanes",
    ]
    for chart in found:
        assert chart.x_label
        drawing = ElementTree.fromstring(svg.draw(chart))
        for shape in drawing.iter():
            for key in ("x", "x1", "x2", "cx"):
                assert -0.1 <= float(shape.get(key, "0")) <= svg.WIDTH, (chart.name, shape.attrib)
            for key in ("y", "y1", "y2", "cy"):
                assert -0.1 <= float(shape.get(key, "0")) <= svg.HEIGHT, (chart.name, shape.attrib)
            if shape.get("class") == "label" and shape.get("y") == "44":
                assert float(shape.get("x", "0")) + len(shape.text or "") * 6.2 < svg.WIDTH


def test_bytes_per_token_are_those_of_the_asked_concurrency():
    """Sampled in the sweep, stretches of one concurrency apart, the first sample of each left out."""

    def sample(t, running, steps, misses, phase="sweep"):
        return {"t_s": float(t), "phase": phase, "running": running, "decode_steps": steps,
                "misses": misses, "slot_bytes": 10}  # fmt: skip

    samples = (
        sample(0, 1, 0, 0, "stream"), sample(1, 1, 10, 999, "stream"), sample(2, 1, 20, 1999, "stream"),
        sample(3, 1, 30, 2000), sample(4, 1, 40, 2100), sample(5, 1, 60, 2300),
        sample(6, 2, 70, 2400), sample(7, 2, 80, 2800), sample(8, 2, 90, 3200), sample(9, 0, 90, 3200),
    )  # fmt: skip
    assert ceilings.bytes_per_token(samples, 1, "misses") == 10 * 200 / 20
    assert ceilings.bytes_per_token(samples, 2, "misses") == 10 * 400 / (10 * 2)
    assert ceilings.bytes_per_token(samples, 4, "misses") is None
    assert ceilings.bytes_per_token(samples, 1, "cpu_experts") is None


@pytest.mark.parametrize(("tier", "roof"), [(None, 25e9), (15e9, 40e9)])
def test_the_roof_of_a_gpu_mode_is_the_link_and_the_cpu_tier_if_it_works(tier, roof):
    gpu = replace(
        make(), prediction=make().prediction | {"bytes_per_token": None},
        measured={"h2d_bytes_per_s": 25e9, "tier_bytes_per_s": tier},
    )  # fmt: skip
    curve, *points = ceilings.roofline(gpu).series
    assert curve.x[0] * 1e6 * curve.y[0] == pytest.approx(roof)
    per_token = 50 * 10**7 / 2  # misses x slot bytes over two steps
    assert [(one.name, one.x, one.y) for one in points] == [("C1", (per_token / 1e6,), (40.0,))]
    rows = dict(ceilings.ceiling_rows(gpu))
    assert rows["link: 4.0 of 25.0 GB/s"] == pytest.approx(0.16)
    assert len(rows) == (2 if tier is None else 3)


def test_a_saved_result_is_shown_again_without_a_server(tmp_path):
    file, page = tmp_path / "r.json", tmp_path / "deep" / "r.html"
    file.write_text(make().to_json())
    done = CliRunner().invoke(bench_verb.app, ["report", str(file), "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert "decode C1" in done.output
    assert page.read_text().count("<svg") == 7


@pytest.mark.parametrize("high", [0.003, 0.9, 1.0, 7.3, 19.99, 100.0, 123456.0])
def test_ticks_are_round_and_cover(high):
    marks = svg.ticks(high)
    assert marks[0] == 0
    assert high <= marks[-1] <= 2 * high
    assert 3 <= len(marks) <= 12


def test_the_report_needs_no_network_and_tells_the_verdict():
    result = replace(make(), verdict=Judged("quality failed", "KL <5>", ("damaged: a & b",)))
    page = report.page(result)
    assert page.count("<svg") == 7
    assert "quality failed</b> KL &lt;5&gt;" in page
    assert "damaged: a &amp; b" in page
    assert "prefers-color-scheme:dark" in page
    for loader in ("<script", "<link", "src=", "url(", "@import"):
        assert loader not in page
    bare = report.page(
        replace(result, sweep=None, stream=None, panel=None, prediction=None, samples=(), phases=())
    )
    assert "<svg" not in bare


def test_the_table_and_the_markdown_carry_figures_machine_and_command():
    result, look = make(), Look(colour=False, unicode=True, live=False)
    lines = "\n".join(text.result_lines(result, None, look))
    assert "decode C1 40 ±1 tok/s" in " ".join(lines.split())
    assert "verdict  ok: quality as expected" in lines
    block = text.markdown(result, compare.changes(result, make(60.0)))
    assert "| decode C1 | 40 ±1 tok/s | 60 ±1 | -33.3%  worse, outside noise |" in block
    assert "AMD EPYC" in block
    assert "`glm53ctl bench`" in block


def test_figures_of_several_streams_say_what_they_count():
    result, look = make(), Look(colour=False, unicode=True, live=False)
    several = [name for name in result.sweep["decode"] if name != "C1"]
    words = (
        f"{', '.join(several)}: that many streams at once, and the sum of their tokens per second"
    )
    assert several
    assert f"  {words}" in list(text.result_lines(result, None, look))
    assert words in text.markdown(result, None)
    alone = replace(result, sweep={"decode": {"C1": result.sweep["decode"]["C1"]}})
    for nothing in (alone, replace(result, sweep=None)):
        assert "streams at once" not in "\n".join(text.result_lines(nothing, None, look))
        assert "streams at once" not in text.markdown(nothing, None)


def test_a_note_is_shown_wherever_the_figures_are():
    noted = replace(make(), note="Another <program> ran.")
    assert "Another &lt;program&gt; ran." in report.page(noted)
    assert "- Another <program> ran." in text.markdown(noted, None)


def test_png_files_are_written_light_and_dark(tmp_path):
    pytest.importorskip("matplotlib")
    found = png_files.write(charting.charts(make())[:1], tmp_path)
    assert [path.name for path in found] == ["throughput.png", "throughput-dark.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in found)


def test_a_disturbed_run_is_never_called_worse():
    before, now = make(40.0), replace(make(20.0), taints=("other programs used 80 % of the CPU",))
    change = next(one for one in compare.changes(now, before) if one.now.name == "decode C1")
    assert not change.worse
    assert "disturbed" in change.words
    assert "worse" not in change.words


def test_a_plot_says_what_a_large_card_was_held_to():
    gpu = replace(make(gpu="NVIDIA H200"), served=replace(make().served, model="dummy-45"))
    held = replace(gpu, served=replace(gpu.served, vram_limit_bytes=24 << 30))
    assert text.caption(gpu) == "NVIDIA H200 · random weights, 45 layers, fast mode · 2026-10-03"
    assert text.caption(held).startswith("NVIDIA H200 held to 24.0 GiB · ")
    assert "NVIDIA H200 held to 24.0 GiB" in report.page(held)


def test_windows_of_few_steps_are_no_points_of_their_own():
    """While a long prompt is read hardly anything is decoded: such seconds go into the next window."""
    ended = make().samples[-1]
    slow = [
        {**ended, "t_s": 5.0 + i, "decode_steps": 25 + i, "hits": 1250 + i} for i in range(1, 7)
    ]
    busy = [{**ended, "t_s": 12.0 + i, "decode_steps": 35 + 5 * i, "hits": 1300 + 250 * i}
            for i in range(6)]  # fmt: skip
    found = charting.charts(replace(make(), samples=(ended, *slow, *busy)))
    (tiers,) = (one for one in found if one.name == "tiers")
    assert len(tiers.series[0].x) == 3
    assert tiers.series[0].x[0] == (5 + 12) / 2
