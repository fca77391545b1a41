"""Where does a decode step's time go on the GPU: kernels, gaps, and how far the host runs ahead.

usage: gpu_trace.py [--layers 13] [--slots 385] [--threads 14] [--out DIR]

Traces a few decode steps of a dummy model with the CUDA profiler: everything in VRAM (no misses), exact
with misses, and fast. `busy` is the union of all GPU activity, `idle` the rest of the step; `lag` is from
the launch call to the start of the kernel: near zero means that the GPU waits for the host.
"""

from __future__ import annotations

import argparse
import collections
import cProfile
import json
import pstats
import statistics
import tempfile
import time
from pathlib import Path

import torch
from gpu_harness import dummy_options, generator_of, load, log, save
from gpu_speed import GIB, decode, make_trace, random_ids

from glm53_kernels import CpuKernels
from glm53_server.engine.exl3_dummy import DummySpec
from glm53_server.engine.exl3_tiers import VramBudget, build_cpu_lane, build_tiers
from glm53_server.moe.calibrate import calibrate
from glm53_server.moe.split import LaneCosts, SplitState

GPU_ACTIVITY = {"kernel", "gpu_memcpy", "gpu_memset"}
HOST_CALL = {"cuda_runtime", "cuda_driver"}


def short(name: str) -> str:
    """A kernel's name without its template and parameters."""
    return name.replace("void ", "").split("(")[0].split("<")[0][-60:]


def union_us(spans: list[tuple[float, float]]) -> float:
    busy, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return busy


def summary(events: list[dict], steps: int, wall_s: float) -> dict[str, object]:
    gpu = [e for e in events if e.get("cat") in GPU_ACTIVITY]
    host = {
        e["args"]["correlation"]: e
        for e in events
        if e.get("cat") in HOST_CALL and "correlation" in e.get("args", {})
    }
    by_name: dict[str, list[float]] = collections.defaultdict(list)
    lags = []
    for event in gpu:
        by_name[short(event["name"])].append(event["dur"])
        call = host.get(event["args"].get("correlation"))
        if call is not None:
            lags.append(event["ts"] - call["ts"] - call["dur"])
    calls: dict[str, list[float]] = collections.defaultdict(list)
    for event in events:
        if event.get("cat") in HOST_CALL:
            calls[event["name"]].append(event["dur"])
    busy = union_us([(e["ts"], e["ts"] + e["dur"]) for e in gpu])

    def table(groups: dict[str, list[float]], top: int) -> list[dict[str, object]]:
        rows = sorted(groups.items(), key=lambda item: -sum(item[1]))[:top]
        return [
            {"name": name, "per_step": round(len(d) / steps, 1), "us_per_step": round(sum(d) / steps, 1),
             "us_each": round(statistics.median(d), 2)}
            for name, d in rows
        ]  # fmt: skip

    return {
        "steps": steps, "wall_ms_per_step": round(1e3 * wall_s / steps, 3),
        "busy_ms_per_step": round(busy / 1e3 / steps, 3), "launches_per_step": round(len(gpu) / steps, 1),
        "lag_us": {f"p{q}": round(float(torch.tensor(lags).quantile(q / 100)), 1) for q in (5, 25, 50, 75, 95)} if lags else {},
        "kernels": table(by_name, 40), "host_calls": table(calls, 12),
    }  # fmt: skip


def traced(generator, trace, name: str, out: Path, steps: int = 8, keep: bool = False) -> dict:
    """Profile `steps` decode iterations of one stream."""
    from exllamav3 import GreedySampler, Job
    from torch.profiler import ProfilerActivity, profile

    trace.restart()
    generator.enqueue(
        Job(input_ids=random_ids(64, 100), max_new_tokens=steps + 40, sampler=GreedySampler())
    )
    for _ in range(24):
        generator.iterate()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        started = time.perf_counter()
        for _ in range(steps):
            generator.iterate()
        torch.cuda.synchronize()
        wall_s = time.perf_counter() - started
    while generator.num_remaining_jobs():
        generator.iterate()
    path = Path(tempfile.gettempdir()) / f"trace-{name}.json"
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    if keep:
        import gzip

        (out / f"trace-{name}.json.gz").write_bytes(gzip.compress(path.read_bytes(), 6))
    body = summary(events, steps, wall_s)
    log(name, {k: v for k, v in body.items() if k not in ("kernels", "host_calls")})
    for row in body["kernels"][:28]:
        print("   ", row["per_step"], row["us_per_step"], row["us_each"], row["name"])
    for row in body["host_calls"]:
        print("   host", row["per_step"], row["us_per_step"], row["us_each"], row["name"])
    return body


def looked_ahead(name: str, generator, trace, tiers) -> dict[str, object]:
    """Decode with 0 to 3 experts looked ahead per layer; the last limit stays at 2."""
    body: dict[str, object] = {}
    for limit in (0, 1, 2, 3):
        tiers.lookahead.limit = limit
        decode(generator, 1, 48, trace, tiers)
        body[f"{name}_c1_ahead_{limit}"] = decode(generator, 1, 96, trace, tiers)
    for streams, limit in ((4, 0), (4, 2), (4, 4)):
        tiers.lookahead.limit = limit
        body[f"{name}_c{streams}_ahead_{limit}"] = decode(generator, streams, 64, trace, tiers)
    tiers.lookahead.limit = 2
    return body


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=13)
    parser.add_argument("--slots", type=int, default=385)
    parser.add_argument("--threads", type=int, default=14)
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    spec = DummySpec(layers=args.layers)
    body: dict[str, object] = {"layers": args.layers, "slots": args.slots, "threads": args.threads}
    with tempfile.TemporaryDirectory() as folder:
        options = dummy_options(
            spec, Path(folder), cache_tokens=16384, max_batch=4, chunk_tokens=2048, fill_threads=14
        )
        profiler = cProfile.Profile()
        profiler.enable()
        loaded, kernels = load(options, tiered=True)
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(22)
        body["load_s"] = loaded.phase_s
        trace = make_trace(spec)
        pool = CpuKernels(threads=args.threads, isa="auto", precision="fast")
        lane = build_cpu_lane(loaded, kernels, pool, SplitState(LaneCosts(2e-4, 2e-4, 3e-5), 0.5))
        lane.enabled = False
        everything = (args.layers - 3) * spec.experts
        budget = VramBudget(
            reserve=GIB, elastic=0, stage=int(2.6 * GIB), slots=everything, lookahead=2
        )
        tiers = build_tiers(loaded, kernels, budget, trace, cpu_lane=lane)
        ahead, tiers.lookahead = tiers.lookahead, None
        generator = generator_of(loaded, 4, 2048)
        residency = tiers.residency
        # All experts resident: what is left is everything but misses.
        for layer in range(args.layers - 3):
            step = residency.new_step(layer)
            for first in range(0, spec.experts, 256):
                picks = torch.arange(first, min(first + 256, spec.experts), device="cuda:0")
                step.picks, step.num_picks = picks.data_ptr(), picks.numel()
                residency.decode_step(step)
        decode(generator, 1, 64, trace, tiers)
        body["resident_c1"] = decode(generator, 1, 96, trace, tiers)
        body["resident_trace"] = traced(generator, trace, "resident", args.out, keep=True)
        residency.evict(0, everything, lock=False)
        residency.evict(args.slots, everything - args.slots, lock=True)
        decode(generator, 1, 64, trace, tiers)
        body["exact_c1"] = decode(generator, 1, 96, trace, tiers)
        body["exact_trace"] = traced(generator, trace, "exact", args.out)
        tiers.lookahead = ahead
        body |= looked_ahead("exact", generator, trace, tiers)
        body["exact_ahead_trace"] = traced(generator, trace, "exact-ahead", args.out, keep=True)
        tiers.drain()
        tiers.lookahead = None
        lane.enabled = True
        with torch.inference_mode():
            log("calibrated", calibrate(lane, residency, lambda: None))
        residency.evict(args.slots, everything - args.slots, lock=True)
        lane.track_every = 8
        decode(generator, 1, 160, trace, tiers)
        log(lane.split)
        body["fast_c1"] = decode(generator, 1, 96, trace, tiers)
        log(lane.stats())
        body["fast_trace"] = traced(generator, trace, "fast", args.out)
        tiers.lookahead = ahead
        body |= looked_ahead("fast", generator, trace, tiers)
        log(lane.stats())
        body["fast_ahead_trace"] = traced(generator, trace, "fast-ahead", args.out, keep=True)
        torch.cuda.synchronize()
        ahead.close()
        lane.close()
    save("decode-trace", body, args.out)


if __name__ == "__main__":
    main()
