"""Does fast mode's split follow a narrow link and few threads? Needs one CUDA GPU.

usage: gpu_split.py [--layers 15] [--threads 14] [--few 2] [--vram-gib 8] [--tokens 240] [--out DIR]

Dummy weights of the real expert size with synthetic routing. A link of x4 or x1 is simulated: every
record is copied 4 or 16 times. Each stretch starts from the split that the one before left; the last
quarter of it is measured. Frozen stretches keep the split of the wide link.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from gpu_harness import dummy_options, generator_of, load, log, save
from gpu_speed import GIB, make_trace, random_ids

from glm53_kernels import CpuKernels
from glm53_server.engine.exl3_dummy import DummySpec
from glm53_server.engine.exl3_tiers import VramBudget, build_cpu_lane, build_tiers
from glm53_server.moe.calibrate import calibrate
from glm53_server.moe.cpu_tier import CpuLane
from glm53_server.moe.layer import ExpertTiers
from glm53_server.moe.routing_trace import RoutingTrace
from glm53_server.moe.split import LaneCosts, SplitState

TRACK_EVERY = 4  # 64 in service: a stretch here is short


def stretch(generator, tokens: int, trace: RoutingTrace, tiers: ExpertTiers) -> dict[str, float]:
    """Decode one stream; figures of its last quarter, and the split at its end."""
    from exllamav3 import GreedySampler, Job

    trace.restart()
    generator.enqueue(
        [Job(input_ids=random_ids(64, 100), max_new_tokens=tokens, sampler=GreedySampler())]
    )
    steps, first = 0, 3 * tokens // 4
    started, before = 0.0, None
    while generator.num_remaining_jobs():
        steps += sum(1 for result in generator.iterate() if result["stage"] == "streaming")
        if steps >= first and before is None:
            torch.cuda.synchronize()
            before, first, started = tiers.residency.counters(), steps, time.perf_counter()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    after = tiers.residency.counters()
    lane = tiers.cpu_lane
    misses = after["misses"] - before["misses"]
    costs = lane.split.costs
    return {
        "tok_per_s": round((steps - first) / seconds, 2),
        "link_share_of_misses": round((after["admitted"] - before["admitted"]) / max(1, misses), 3),
        "misses_per_token": round(misses / max(1, steps - first), 1),
        "link_ms_per_expert": round(1e3 * costs.link_s, 3),
        "cpu_ms_per_expert": round(1e3 * costs.cpu_s, 3),
        "timeouts": lane.counters().timeouts,
    }


def start_lane(lane: CpuLane, tiers: ExpertTiers, split: SplitState | None) -> None:
    """Make a lane the one in use: with a split it inherits, or with what calibration finds."""
    tiers.cpu_lane = lane
    lane.track_every = TRACK_EVERY
    if split is not None:
        lane.split = split
        return
    with torch.inference_mode():
        calibrate(lane, tiers.residency, lambda: None)


def run(args: argparse.Namespace) -> dict[str, object]:
    body: dict[str, object] = {"layers": args.layers, "threads": args.threads, "few": args.few}
    spec = DummySpec(layers=args.layers)
    with tempfile.TemporaryDirectory() as folder:
        options = dummy_options(
            spec, Path(folder), cache_tokens=4096, max_batch=1, chunk_tokens=2048, fill_threads=14
        )
        loaded, kernels = load(options, tiered=True)
        trace = make_trace(spec)
        start = SplitState(LaneCosts(2e-4, 2e-4, 3e-5), 0.5)
        lanes = [
            build_cpu_lane(loaded, kernels, CpuKernels(threads=n, precision="fast"), start)
            for n in (args.threads, args.few)
        ]
        many, few = lanes
        budget = VramBudget(GIB, 0, 0, limit=int(args.vram_gib * GIB))
        tiers = build_tiers(loaded, kernels, budget, trace, cpu_lane=many)
        body["slots"] = tiers.residency.slots
        generator = generator_of(loaded, 1, 2048)

        def measure(name: str, repeats: int) -> None:
            tiers.residency.gather_repeats = repeats
            body[name] = stretch(generator, args.tokens, trace, tiers)
            log(name, body[name])

        start_lane(many, tiers, None)
        measure("x16", 1)
        wide = many.split
        for name, repeats in (("x4", 4), ("x1", 16), ("x16_again", 1)):
            measure(name, repeats)
        for name, repeats in (("x4_frozen", 4), ("x1_frozen", 16)):
            many.split = replace(wide, frozen=True)
            measure(name, repeats)
        start_lane(few, tiers, wide)
        measure(f"x16_threads_{args.few}", 1)
        few.split = replace(wide, frozen=True)
        measure(f"x16_threads_{args.few}_frozen", 1)
        torch.cuda.synchronize()
        for lane in lanes:
            lane.close()
    return body


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=15)
    parser.add_argument("--threads", type=int, default=14)
    parser.add_argument("--few", type=int, default=2)
    parser.add_argument("--vram-gib", type=float, default=8.0)
    parser.add_argument("--tokens", type=int, default=240)
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    args = parser.parse_args()
    save("fast-split", run(args), args.out)


if __name__ == "__main__":
    main()
