"""Fast mode on a GPU: how close is it to exact, how fast, and where does the time go?

usage: gpu_fast.py [--layers 45] [--threads 14] [--vram-gib 24] [--isa auto] [--ahead -1] [--stock-kernels] [--out DIR]

Quality on the tiny checkpoint: the same tokens decoded one by one with the CPU tier off and on (all
experts on the CPU; the default policy), KL over the whole vocabulary. Speed on dummy weights at full
geometry with synthetic routing: exact and fast in one process with the same picks.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from gpu_harness import ROOT, TINY, dummy_options, forward_chunks, generator_of, load, log, save
from gpu_speed import GIB, copy_ceiling, decode, make_trace, prefill

from glm53_kernels import CpuKernels
from glm53_server.engine.exl3_dummy import DummySpec
from glm53_server.engine.exl3_model import LoadOptions
from glm53_server.engine.exl3_tiers import VramBudget, build_cpu_lane, build_tiers
from glm53_server.moe.calibrate import calibrate
from glm53_server.moe.lookahead import AUTO
from glm53_server.moe.split import LaneCosts, SplitState

START_COSTS = LaneCosts(2e-4, 2e-4, 3e-5)
PANEL = ROOT / "reference" / "tiny-ref-panel.json"
Figures = dict[str, Any]


def kl_figures(reference: torch.Tensor, found: torch.Tensor) -> dict[str, float]:
    """KL(reference || found) per position over the vocabulary, float64."""
    p = torch.log_softmax(reference[0].double(), -1)
    q = torch.log_softmax(found[0].double(), -1)
    kl = (p.exp() * (p - q)).sum(-1)
    same = p.argmax(-1) == q.argmax(-1)
    top = p.topk(2, -1).values
    margins = (top[:, 0] - top[:, 1])[~same]
    return {
        "positions": kl.numel(), "kl_sum": float(kl.sum()), "kl_all": kl, "same": int(same.sum()),
        "margins": [round(float(m), 5) for m in margins],
    }  # fmt: skip


def quality(
    isa: str, threads: int, precision: str, checkpoint: Path = TINY, panel_file: Path = PANEL
) -> dict[str, object]:
    panel = json.loads(panel_file.read_text())
    options = LoadOptions(directory=checkpoint, cache_tokens=16384, max_batch=4, chunk_tokens=2048)
    loaded, kernels = load(options, tiered=True)
    pool = CpuKernels(threads=threads, isa=isa, precision=precision)
    lane = build_cpu_lane(loaded, kernels, pool, SplitState(START_COSTS, 0.0, frozen=True))
    budget = VramBudget(reserve=0, elastic=0, stage=0, slots=39)
    tiers = build_tiers(loaded, kernels, budget, stage_rows=64, cpu_lane=lane)
    sequences = [torch.tensor([row["tokens"]]) for row in panel]

    def run(enabled: bool, share: float) -> list[torch.Tensor]:
        lane.enabled = enabled
        lane.split = SplitState(START_COSTS, share, frozen=True)
        tiers.residency.evict(0, tiers.residency.slots, lock=False)
        return [forward_chunks(loaded, ids, 1) for ids in sequences]

    exact = run(False, 1.0)
    body: dict[str, object] = {"isa": pool.isa, "threads": threads, "precision": precision}
    for name, enabled, share in (
        ("control_off_off", False, 1.0),
        ("all_cpu", True, 0.0),
        ("default_half", True, 0.5),
    ):
        before = lane.counters().experts
        parts = [kl_figures(a, b) for a, b in zip(exact, run(enabled, share), strict=True)]
        kl = torch.cat([p["kl_all"] for p in parts])
        positions = sum(p["positions"] for p in parts)
        body[name] = {
            "positions": positions, "kl_mean": float(kl.mean()), "kl_p99": float(kl.quantile(0.99)),
            "kl_max": float(kl.max()), "top1_agree": sum(p["same"] for p in parts) / positions,
            "disagree_margins_nats": [m for p in parts for m in p["margins"]],
            "cpu_experts": lane.counters().experts - before,
        }  # fmt: skip
        log("quality", name, body[name])
    body["timeouts"] = lane.counters().timeouts
    # Prefill must stay bit-identical with the tier attached.
    ids = torch.randint(64, 4096, (1, 2000), generator=torch.Generator().manual_seed(1))
    lane.enabled = False
    expected = forward_chunks(loaded, ids, 512)
    lane.enabled = True
    body["prefill_bit_identical"] = bool(torch.equal(expected, forward_chunks(loaded, ids, 512)))
    log("prefill bit-identical:", body["prefill_bit_identical"])
    torch.cuda.synchronize()
    lane.close()
    loaded.model.unload()
    loaded.arena.close()  # what is freed while it is pinned cannot be pinned again
    return body


def lanes(generator, streams: int, tokens: int, trace, tiers, skip: int = 16) -> Figures:
    """Decode, with the CPU lane's and the look-ahead's figures beside the link's, after `skip` tokens."""
    lane, ahead = tiers.cpu_lane, tiers.lookahead
    at_start: list[Any] = []
    figures: Figures = decode(
        generator, streams, skip + tokens, trace, tiers, skip=skip,
        at_start=lambda: at_start.extend((lane.counters(), tiers.residency.counters())),
    )  # fmt: skip
    before, looked = at_start
    after, found = lane.counters(), tiers.residency.counters()
    if jobs := after.jobs - before.jobs:
        figures |= {
            "cpu_ms_per_job": round((after.busy_ns - before.busy_ns) / 1e6 / jobs, 3),
            "cpu_experts_per_job": round((after.experts - before.experts) / jobs, 2),
            "kernels_ms_per_layer": round(lane.split.costs.kernels_s * 1e3, 4),
            "share": round(lane.split.share, 3),
            "offset": round(lane.split.offset, 3),
        }
    if ahead is not None:
        figures |= {
            "ahead": ahead.limit,
            "ahead_copied": found["lookahead"] - looked["lookahead"],
            "ahead_waits": found["lookahead_waits"] - looked["lookahead_waits"],
        }
        if ahead.paces is not None:
            took = sorted(ahead.paces[streams].took_s.items())
            figures["ahead_step_ms"] = {n: round(seconds * 1e3, 2) for n, seconds in took}
    log("  lanes", figures)
    return figures


def ceiling(
    costs: LaneCosts, layers: int, exact: Figures, fast: Figures, stock_kernels_ms: float
) -> Figures:
    """What the measured lanes allow: both end together for the mean misses per layer, and the rest of the step
    is as in exact mode, whose expert kernels take stock_kernels_ms per layer after the copies. Without
    look-ahead, for the same number of streams.
    """
    misses = fast["misses_per_token"] * fast["ms_per_step"] * fast["tok_per_s"] / 1e3 / layers
    both = costs.link_s + costs.cpu_s
    lane_ms = 1e3 / both * (
        misses * costs.link_s * costs.cpu_s
        + costs.kernels_s * costs.cpu_s
        + costs.fixed_s * costs.link_s
    )  # fmt: skip
    rest_ms = exact["ms_per_step"] - exact["gather_ms_per_step"] - layers * stock_kernels_ms
    step_ms = rest_ms + layers * lane_ms
    return {
        "link_ms_per_expert": round(costs.link_s * 1e3, 4), "cpu_ms_per_expert": round(costs.cpu_s * 1e3, 4),
        "fixed_ms_per_layer": round(costs.fixed_s * 1e3, 4), "kernels_ms_per_layer": round(costs.kernels_s * 1e3, 4),
        "misses_per_layer": round(misses, 3), "lane_ms_per_layer": round(lane_ms, 4),
        "stock_kernels_ms_per_layer": stock_kernels_ms, "rest_ms_per_step": round(rest_ms, 2), "ms_per_step": round(step_ms, 2),
        "tok_per_s": round(fast["tok_per_s"] * fast["ms_per_step"] / step_ms, 2),
        "measured_share": round(step_ms / fast["ms_per_step"], 3),
    }  # fmt: skip


def await_file(path: Path | None) -> None:
    while path is not None and not path.exists():
        time.sleep(0.5)


def with_stock_kernels(generator, trace, tiers, args: argparse.Namespace, body: Figures) -> None:
    """Fast mode, but stock's kernels compute the GPU's experts after the copies; then what the lanes allow."""
    lane = tiers.cpu_lane
    own, costs, lane.experts = lane.experts, lane.split.costs, None
    lane.split = replace(lane.split, costs=replace(costs, kernels_s=0.0))
    for n in (1, 2, 4):
        body[f"fast_c{n}_stock_kernels"] = stock = lanes(
            generator, n, args.tokens, trace, tiers, skip=args.skip // 2
        )
        if {"exact", "fast"} <= set(args.plain):
            exact, fast = (body[f"{mode}_c{n}_no_lookahead"] for mode in ("exact", "fast"))
            kernels_ms = stock["kernels_ms_per_layer"]
            name = "model_ceiling" if n == 1 else f"model_ceiling_c{n}"
            body[name] = ceiling(costs, args.layers - 3, exact, fast, kernels_ms)
            log(name, body[name])
    lane.experts = own


def speed(args: argparse.Namespace) -> Figures:
    body: Figures = {
        "layers": args.layers,
        "threads": args.threads,
        "precision": args.precision,
    }
    with tempfile.TemporaryDirectory() as folder:
        options = dummy_options(
            DummySpec(layers=args.layers), Path(folder), cache_tokens=36864, max_batch=4,
            chunk_tokens=args.chunk, fill_threads=14,
        )  # fmt: skip
        loaded, kernels = load(options, tiered=True)
        trace = make_trace(DummySpec(layers=args.layers))
        await_file(args.wait_for)
        pool = CpuKernels(threads=args.threads, isa=args.isa, precision=args.precision)
        lane = build_cpu_lane(loaded, kernels, pool, SplitState(START_COSTS, 0.5))
        budget = VramBudget(
            GIB, 10 * GIB, int(2.6 * GIB), limit=int(args.vram_gib * GIB), lookahead=args.ahead
        )
        tiers = build_tiers(loaded, kernels, budget, trace, cpu_lane=lane)
        body |= {
            "slots": tiers.residency.slots,
            "isa": pool.isa,
            "copy_ceiling_gb_per_s": copy_ceiling(tiers),
        }
        with torch.inference_mode():
            found = calibrate(lane, tiers.residency, lambda: None)
        body["calibration"] = asdict(found)
        body["load_s"] = loaded.phase_s
        body["peak_rss_gib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
        body["arena_gib"] = round(loaded.arena.layout.total_bytes / GIB, 2)
        log("calibrated", found, "split", lane.split)
        generator = generator_of(loaded, 4, args.chunk)
        lane.enabled = False
        decode(generator, 1, 24, trace, tiers)
        ahead, lane.track_every = tiers.lookahead, 16
        for mode in ("exact", "fast"):
            lane.enabled = mode == "fast"
            if ahead is not None and ahead.paces is not None:
                ahead.paces = {}  # the other mode's pace is not this one's
            for n in (1, 2, 4):  # the first tokens fill the cache, find the pace and the split
                body[f"{mode}_c{n}"] = lanes(
                    generator, n, args.tokens, trace, tiers, skip=args.skip
                )
                save("fast-speed", body, args.out)
            tiers.drain()
            tiers.lookahead = None
            for n in (1, 2, 4) if ahead is not None and mode in args.plain else ():
                body[f"{mode}_c{n}_no_lookahead"] = lanes(generator, n, args.tokens, trace, tiers)
            if mode == "fast" and args.stock_kernels:
                with_stock_kernels(generator, trace, tiers, args, body)
            tiers.lookahead = ahead
            save("fast-speed", body, args.out)
        calibrated = lane.split
        for share in args.shares:
            lane.split = replace(calibrated, share=share, offset=0.5, frozen=True)
            body[f"fast_c1_share_{share}"] = decode(generator, 1, 80, trace, tiers)
        lane.split = calibrated
        for n in args.prefill:
            body[f"prefill_{n}"] = prefill(generator, n, tiers)
        body["lookahead_failed"] = ahead is not None and ahead.failed
        body["timeouts"] = lane.counters().timeouts
        exact, fast = body["exact_c1"]["tok_per_s"], body["fast_c1"]["tok_per_s"]
        body["fast_over_exact_c1"] = round(fast / exact, 3)
        body["fast_c4_over_c1"] = round(body["fast_c4"]["tok_per_s"] / fast, 3)
        log("fast / exact C1", body["fast_over_exact_c1"], "timeouts", body["timeouts"])
        torch.cuda.synchronize()
        if ahead is not None:
            ahead.close()
        lane.close()
    return body


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=45)
    parser.add_argument("--threads", type=int, default=14)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--precision", default="fast")
    parser.add_argument("--vram-gib", type=float, default=24.0)
    parser.add_argument("--chunk", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--skip", type=int, default=160, help="tokens before those measured")
    parser.add_argument("--plain", nargs="*", default=["exact", "fast"], help="modes measured without look-ahead too")  # fmt: skip
    parser.add_argument("--stock-kernels", action="store_true", help="fast mode with stock's expert kernels too, without look-ahead")  # fmt: skip
    parser.add_argument("--shares", type=float, nargs="*", default=[])
    parser.add_argument("--ahead", type=int, default=AUTO)
    parser.add_argument("--prefill", type=int, nargs="*", default=[32768])
    parser.add_argument("--skip-speed", action="store_true")
    parser.add_argument("--skip-quality", action="store_true")
    parser.add_argument("--checkpoint", type=Path, default=TINY, help="a small one, for quality")
    parser.add_argument("--panel", type=Path, default=PANEL, help="whose tokens quality decodes")
    parser.add_argument("--wait-for", type=Path, help="measure speed only once this file exists")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    args = parser.parse_args()
    if not args.skip_quality:
        body: dict[str, object] = {
            precision: quality(
                args.isa, min(args.threads, 8), precision, args.checkpoint, args.panel
            )
            for precision in ("exact", "fast")
        }
        save("fast-quality", body, args.out)
    if not args.skip_speed:
        save("fast-speed", speed(args), args.out)


if __name__ == "__main__":
    main()
