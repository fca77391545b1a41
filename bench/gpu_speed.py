"""How fast is exact mode at full geometry, and what bounds it? Needs one CUDA GPU and 112 GiB of RAM.

usage: gpu_speed.py [--layers 45] [--compare-layers 13] [--vram-gib 24] [--out DIR]

Dummy weights, synthetic routing (model.md 5.4), the same picks for every engine. Prints load phases,
the copy ceiling, the gather rate, decode at 1, 2 and 4 streams, prefill at 8k and 32k tokens; then
stock exllamav3 with its CPU experts and exact mode at the smaller depth, one after the other.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from copy_times import CopyTimes
from gpu_harness import dummy_options, generator_of, load, log, save

from glm53_server.engine.exl3_dummy import DummySpec
from glm53_server.engine.exl3_model import detach, moe_blocks
from glm53_server.engine.exl3_tiers import VramBudget, build_tiers
from glm53_server.moe.layer import ExpertTiers
from glm53_server.moe.routing_trace import RoutingTrace, TraceSpec

GIB = 1 << 30


def random_ids(length: int, seed: int) -> torch.Tensor:
    return torch.randint(64, 150000, (1, length), generator=torch.Generator().manual_seed(seed))


def copy_ceiling(tiers: ExpertTiers) -> float:
    """GB/s of the copy engine over random records of the arena."""
    residency = tiers.residency
    layout = residency.layout
    target = torch.empty(layout.record_bytes, dtype=torch.uint8, device=residency.device)
    order = torch.randperm(
        layout.layers * layout.experts, generator=torch.Generator().manual_seed(1)
    )[:600].tolist()
    stream = residency.stream()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for key in order:
        source = residency.state.home + key * layout.record_bytes
        residency.kernels.copy_async(target.data_ptr(), source, layout.record_bytes, stream)
    torch.cuda.synchronize()
    return len(order) * layout.record_bytes / (time.perf_counter() - started) / 1e9


def gather_sweep(tiers: ExpertTiers) -> dict[str, float]:
    """GB/s of the gather kernel alone, by jobs per launch and thread blocks."""
    residency = tiers.residency
    layout = residency.layout
    normal, figures = residency.gather_blocks, {}
    generator = torch.Generator().manual_seed(2)
    for jobs in (2, 4, 8, 32):
        for blocks in (66, 132, 264, 528):
            residency.gather_blocks = blocks
            residency.gather_times = []
            before = residency.counters()["admitted"]
            for _ in range(6):
                for layer in range(0, layout.layers, 4):
                    picks = torch.randperm(layout.experts, generator=generator)[:jobs]
                    picks = picks.to(residency.device)
                    step = residency.new_step(layer)
                    step.picks, step.num_picks = picks.data_ptr(), picks.numel()
                    residency.decode_step(step)
            torch.cuda.synchronize()
            seconds = sum(a.elapsed_time(b) for a, b in residency.gather_times) / 1e3
            moved = (residency.counters()["admitted"] - before) * layout.record_bytes
            figures[f"jobs{jobs}_blocks{blocks}"] = round(moved / seconds / 1e9, 2)
    residency.gather_blocks, residency.gather_times = normal, None
    log("gather GB/s", figures)
    return figures


def decode(
    generator, streams: int, tokens: int, trace: RoutingTrace, tiers: ExpertTiers | None,
    skip: int = 16, at_start: Callable[[], object] = lambda: None,
) -> dict[str, float]:  # fmt: skip
    """tok/s in total, after the first `skip` tokens and without the steps whose copies are timed; counters of
    the tiers over the measured part, which begins with `at_start`.
    """
    from exllamav3 import GreedySampler, Job

    trace.restart()
    jobs = [
        Job(input_ids=random_ids(64, 100 + i), max_new_tokens=tokens, sampler=GreedySampler())
        for i in range(streams)
    ]
    generator.enqueue(jobs)
    steps = produced = 0
    started = before = None
    copies = CopyTimes(tiers.residency if tiers else None)
    while generator.num_remaining_jobs():
        if started is not None:
            copies.begin()
        results = generator.iterate()
        count = sum(1 for r in results if r["stage"] == "streaming")
        if count == streams:
            steps += 1
        if steps == skip and started is None:
            torch.cuda.synchronize()
            at_start()
            before = tiers.residency.counters() if tiers else None
            started = time.perf_counter()
        elif started is not None:
            produced += count
            copies.end(count)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started - copies.wall_s
    counted = produced - copies.produced
    step_ms = 1e3 * seconds * streams / counted
    figures = {"tok_per_s": round(counted / seconds, 2), "ms_per_step": round(step_ms, 2)}
    if tiers:
        after = tiers.residency.counters()
        delta = {k: after[k] - before[k] for k in after}
        gather_ms = copies.ms_per_step()
        gb_per_s = copies.experts_per_s() * tiers.residency.layout.record_bytes / 1e9
        figures |= {
            "hit_rate": round(delta["hits"] / max(1, delta["hits"] + delta["misses"]), 4),
            "misses_per_token": round(delta["misses"] / produced, 1),
            "gather_ms_per_step": round(gather_ms, 2),
            "gather_gb_per_s": round(gb_per_s, 2),
            "other_ms_per_step": round(step_ms - gather_ms, 2),
            "no_victim": delta["no_victim"],
        }  # fmt: skip
    log(f"decode C{streams}", figures)
    return figures


def prefill(generator, length: int, tiers: ExpertTiers | None) -> dict[str, float]:
    from exllamav3 import GreedySampler, Job

    torch.cuda.synchronize()
    moved = tiers.stager.stats.bytes if tiers else 0
    started = time.perf_counter()
    generator.enqueue(
        Job(input_ids=random_ids(length, length), max_new_tokens=1, sampler=GreedySampler())
    )
    while generator.num_remaining_jobs():
        generator.iterate()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    figures = {"tok_per_s": round(length / seconds, 1), "seconds": round(seconds, 2)}
    if tiers:
        moved = tiers.stager.stats.bytes - moved
        figures |= {
            "staged_gb": round(moved / 1e9, 1),
            "staged_gb_per_s": round(moved / seconds / 1e9, 2),
        }
    log(f"prefill {length}", figures)
    return figures


def make_trace(spec: DummySpec) -> RoutingTrace:
    return RoutingTrace(
        TraceSpec(layers=spec.layers - 3, experts=spec.experts, picks=8), torch.device("cuda:0")
    )


def exact(
    spec: DummySpec,
    folder: Path,
    vram_gib: float,
    lengths: list[int],
    chunk: int,
    slots: int | None = None,
) -> dict[str, object]:
    options = dummy_options(
        spec, folder, cache_tokens=36864, max_batch=4, chunk_tokens=chunk, fill_threads=14
    )
    started = time.perf_counter()
    loaded, kernels = load(options, tiered=True)
    trace = make_trace(spec)
    limit = int(vram_gib * GIB)
    budget = VramBudget(
        reserve=GIB, elastic=10 * GIB, stage=int(2.6 * GIB), limit=limit, slots=slots
    )
    tiers = build_tiers(loaded, kernels, budget, trace)
    plan = tiers.stager._memory.plan
    log("slots", plan)
    ceiling = copy_ceiling(tiers)
    log(f"copy ceiling {ceiling:.1f} GB/s; ready after {time.perf_counter() - started:.1f} s")
    generator = generator_of(loaded, 4, chunk)
    body: dict[str, object] = {
        "layers": spec.layers, "slots": plan.total, "vram_gib": vram_gib, "load_s": loaded.phase_s,
        "copy_ceiling_gb_per_s": round(ceiling, 2), "arena_gib": round(loaded.arena.layout.total_bytes / GIB, 1),
    }  # fmt: skip
    decode(generator, 1, 128, trace, tiers)  # fills the cache
    body |= {f"decode_c{n}": decode(generator, n, 160, trace, tiers) for n in (1, 2, 4)}
    if lengths:
        for limit in (0, 1, 2):
            tiers.residency.admit_limit = limit
            body[f"decode_c1_admit_{limit}"] = decode(generator, 1, 96, trace, tiers)
        tiers.residency.admit_limit = 256
        body["gather_gb_per_s"] = gather_sweep(tiers)
    body |= {f"prefill_{n}": prefill(generator, n, tiers) for n in lengths}
    body["decode_c1_after_prefill"] = decode(generator, 1, 64, trace, tiers)
    body["stage"] = str(tiers.stager.stats)
    torch.cuda.synchronize()
    detach(loaded)
    loaded.model.unload()
    loaded.arena.close()
    return body


class RouteOnly:
    """The trace alone, attached to a stock model's routers."""

    def __init__(self, block, layer: int, trace: RoutingTrace) -> None:
        self._route, self._layer, self._trace = block.routing_fn, layer, trace

    def routing_fn(self, rows, cfg, y, params):
        picks, weights = self._route(rows, cfg, y, params)
        return self._trace(self._layer, picks), weights


def stock(
    spec: DummySpec, folder: Path, cpu_split: int, threads: int, tokens: int
) -> dict[str, object]:
    options = dummy_options(
        spec,
        folder,
        cache_tokens=16384,
        max_batch=4,
        chunk_tokens=2048,
        cpu_split=cpu_split,
        cpu_split_threads=threads,
    )
    loaded, _ = load(options, tiered=False)
    trace = make_trace(spec)
    for layer, block in enumerate(moe_blocks(loaded)):
        block.routing_fn = RouteOnly(block, layer, trace).routing_fn
    generator = generator_of(loaded, 4, 2048)
    decode(generator, 1, tokens // 2 + 8, trace, None)
    body: dict[str, object] = {"layers": spec.layers, "cpu_split": cpu_split, "threads": threads}
    body |= {f"decode_c{n}": decode(generator, n, tokens, trace, None) for n in (1, 4)}
    loaded.model.unload()
    return body


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=45)
    parser.add_argument("--compare-layers", type=int, default=13)
    parser.add_argument("--vram-gib", type=float, default=24.0)
    parser.add_argument("--chunk", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=14)
    parser.add_argument("--prefill", type=int, nargs="*", default=[8192, 32768])
    parser.add_argument("--only", choices=("full", "compare", "stock"))
    parser.add_argument("--tokens", type=int, default=96, help="of the stock engine, per stream")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    args = parser.parse_args()
    body: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        if args.only == "stock":
            spec = DummySpec(layers=args.layers)
            body["stock_mcs"] = stock(spec, Path(folder), 257, args.threads, args.tokens)
            save("stock-speed", body, args.out)
            sys.stdout.flush()
            os._exit(0)
        if args.only != "compare":
            spec = DummySpec(layers=args.layers)
            body["exact"] = exact(
                spec, Path(folder) / "full", args.vram_gib, args.prefill, args.chunk
            )
            gc.collect()
        if args.only != "full":
            spec = DummySpec(layers=args.compare_layers)
            # The cache keeps the full model's share of experts: what 24 GB hold of 42 layers.
            body["stock_mcs"] = stock(spec, Path(folder) / "stock", 257, args.threads, args.tokens)
            gc.collect()
            torch.cuda.empty_cache()
            total = body.get("exact", {}).get("slots", 1312)
            slots = total * (args.compare_layers - 3) // 42
            body["exact_compare"] = exact(
                spec, Path(folder) / "exact", args.vram_gib, [], 2048, slots
            )
            ratio = (
                body["exact_compare"]["decode_c1"]["tok_per_s"]
                / body["stock_mcs"]["decode_c1"]["tok_per_s"]
            )
            body["exact_over_stock_mcs_c1"] = round(ratio, 2)
            log("exact / stock -mcs, C1:", body["exact_over_stock_mcs_c1"])
    save("exact-speed", body, args.out)
    sys.stdout.flush()
    os._exit(0)  # stock's worker processes would otherwise hold the exit up


if __name__ == "__main__":
    main()
