"""Replay a routing trace under many cache policies: hits, bytes over the link, and predicted tok/s.

usage: replay_policies.py [--trace FILE.npy] [--steps 768] [--slots 1617] [--only NAME ...] [--out FILE]

FILE.npy is int [steps, layers, streams, picks]. Without it the synthetic router draws one and four
streams; a stream has a topic of its own, and another one from the middle on, so that what was popular
before misleads. Needs no GPU. Speed is the model of moe/split.py with constants measured on real
machines; it was right to about 2 % for CLOCK when that shipped (docs/tuning.md).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from cache_policies import Policy
from replay_arms import ARMS, belady
from replay_inputs import Refused, check_numbers, read_trace

from glm53_server.moe.routing_trace import TraceSpec, make_decode_trace, popularity_sigma
from glm53_server.moe.split import LaneCosts, balanced
from glm53ctl.checkpoint import FLASH

WARM_UP_STEPS = 64
GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Machine:
    """Lane costs in seconds per expert, and the rest of a step (ms) by number of streams.

    exposed: share of a background copy's time that was not hidden behind other work.
    """

    costs: LaneCosts
    rest_ms: dict[int, float]
    exposed: float


def costs(link_gb_per_s: float, cpu_gb_per_s: float, hit_s: float) -> LaneCosts:
    size = FLASH.expert_bytes / 1e9
    return LaneCosts(size / link_gb_per_s, size / cpu_gb_per_s, 0.06e-3, hit_s)


# H200: bench/results/*-exact-speed.json and *-fast-speed.json; the rest holds the hits' reading too, and
# two copies a layer behind attention cost 0.56 of their time. RTX 3090, Gen4 x16, 24 cores: published.
MACHINES = {
    "h200": Machine(costs(50.5, 44.0, 0.0), {1: 17.5, 2: 28.0, 4: 38.2}, 0.56),
    "rtx3090": Machine(costs(23.6, 90.0, 0.034e-3), {1: 12.8, 2: 15.0, 4: 18.0}, 0.56),
}


@dataclass(slots=True)
class Tally:
    """What a replay moved; `lanes_s` is the time of the layers' slower lanes."""

    hits: int = 0
    misses: int = 0
    link: int = 0
    admitted: int = 0
    background: int = 0
    lanes_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Rules:
    """How a layer's misses are treated beside the policy.

    split: "exact" sends all over the link, "whole" the best whole number for each layer (as shipped),
    "share" the share that is best in the mean, rounded up or down in turns. limit: admissions per layer.
    background: CPU-computed experts that are copied per layer behind other work.
    """

    split: str = "whole"
    limit: int = 1 << 20
    background: int = 0


def balanced_share(costs: LaneCosts, misses: float, hits: float) -> float:
    """The split that was: the share of the misses for which both lanes would end together."""
    if misses <= 0:
        return 1.0
    spare = costs.fixed_s - costs.kernels_s - hits * costs.hit_s
    on_link = (misses * costs.cpu_s + spare) / (costs.link_s + costs.cpu_s)
    return min(1.0, max(0.0, on_link / misses))


def lane_s(costs: LaneCosts, hits: int, link: int, cpu: int) -> float:
    """Seconds of one layer's experts: the slower lane."""
    on_cpu = costs.fixed_s + cpu * costs.cpu_s if cpu else 0.0
    return max(hits * costs.hit_s + link * costs.link_s, on_cpu)


class Splitter:
    """How many of a layer's misses go over the link. Means of hits and misses are tracked slowly."""

    def __init__(self, costs: LaneCosts, split: str) -> None:
        self._costs, self._split = costs, split
        self._hits = self._misses = 4.0
        self._calls = 0

    def link(self, hits: int, misses: int) -> int:
        if self._split == "exact":
            return misses
        self._calls += 1
        self._hits += 1e-3 * (hits - self._hits)
        self._misses += 1e-3 * (misses - self._misses)
        if self._split == "whole":
            share, offset = balanced(self._costs, self._hits)
        else:
            share = balanced_share(self._costs, self._misses, self._hits)
            offset = self._calls * GOLDEN % 1.0
        return min(misses, max(0, int(misses * share + offset)))


def warm_up(steps: int) -> int:
    """Steps that are not counted: the cache fills."""
    return min(WARM_UP_STEPS, steps // 4)


def replay(trace: np.ndarray, policy: Policy, lanes: LaneCosts, rules: Rules) -> Tally:
    """trace: int [steps, layers, streams, picks]."""
    steps, layers = trace.shape[:2]
    experts = FLASH.experts
    splitter = Splitter(lanes, rules.split)
    tally = Tally()
    for step in range(steps):
        if step == warm_up(steps):
            tally = Tally()
        for layer in range(layers):
            picks = dict.fromkeys((trace[step, layer].ravel() + layer * experts).tolist())
            hits, misses, busy = policy.touch(list(picks), step)
            link = splitter.link(len(hits), len(misses))
            placed = sum(policy.place(key, busy) for key in misses[: min(link, rules.limit)])
            later = sum(policy.place(key, busy) for key in misses[link : link + rules.background])
            tally.hits += len(hits)
            tally.misses += len(misses)
            tally.link += link
            tally.admitted += placed
            tally.background += later
            tally.lanes_s += lane_s(lanes, len(hits), link, len(misses) - link)
    return tally


def uses_of(trace: np.ndarray) -> list[list[int]]:
    """The moments of each key's picks, ascending."""
    uses: list[list[int]] = [[] for _ in range(trace.shape[1] * FLASH.experts)]
    for step in range(trace.shape[0]):
        for layer in range(trace.shape[1]):
            for expert in set(trace[step, layer].ravel().tolist()):
                uses[layer * FLASH.experts + expert].append(step * trace.shape[1] + layer)
    return uses


def topical_trace(steps: int, streams: int, overlap: float, seed: int = 0) -> np.ndarray:
    """Synthetic routing; each stream has two topics, whose popularity shares `overlap` of its variance
    with all others."""
    layers, generator = FLASH.moe_layers, torch.Generator().manual_seed(seed)
    sigma = torch.tensor([popularity_sigma(3 + i) for i in range(layers)])[:, None]
    common = torch.randn((layers, FLASH.experts), generator=generator)

    def part(count: int) -> torch.Tensor:
        own = torch.randn((layers, FLASH.experts), generator=generator)
        popularity = sigma * (overlap**0.5 * common + (1 - overlap) ** 0.5 * own)
        spec = TraceSpec(layers, FLASH.experts, FLASH.experts_per_token, steps=count, streams=1)
        return make_decode_trace(spec, popularity, generator)

    halves = (steps // 2, steps - steps // 2)
    return torch.cat([torch.cat([part(n) for n in halves]) for _ in range(streams)], 2).numpy()


def figures(tally: Tally, machine: Machine, streams: int, steps: int) -> dict[str, float]:
    """Per token. `tok_per_s` charges background copies what was measured; `_if_hidden` nothing."""
    tokens, size = steps * streams, FLASH.expert_bytes / 1e9
    hidden_ms = machine.rest_ms[streams] + 1e3 * tally.lanes_s / steps
    copies_ms = 1e3 * tally.background * machine.costs.link_s * machine.exposed / steps
    return {
        "tok_per_s": round(1e3 * streams / (hidden_ms + copies_ms), 2),
        "tok_per_s_if_hidden": round(1e3 * streams / hidden_ms, 2),
        "hit_rate": round(tally.hits / (tally.hits + tally.misses), 4),
        "misses": round(tally.misses / tokens, 1),
        "admissions": round((tally.admitted + tally.background) / tokens, 1),
        "link_gb_on_path": round(tally.link * size / tokens, 3),
        "link_gb_off_path": round(tally.background * size / tokens, 3),
    }


def run_arm(name: str, trace: np.ndarray, slots: int) -> dict[str, dict[str, float]]:
    """One policy over one trace: exact and fast on every machine."""
    make, extra = ARMS[name]
    steps, layers, streams, _ = trace.shape
    uses = uses_of(trace) if make is belady else []
    found: dict[str, dict[str, float]] = {}
    for machine_name, machine in MACHINES.items():
        for mode in ("exact", "fast"):
            rules = Rules(**(extra | {"split": "exact"} if mode == "exact" else extra))  # type: ignore[arg-type]
            policy = make(slots, layers * FLASH.experts, uses)
            tally = replay(trace, policy, machine.costs, rules)
            counted = steps - warm_up(steps)
            found[f"{mode}_{machine_name}"] = figures(tally, machine, streams, counted)
    return found


def table(results: dict[str, dict[str, dict[str, dict[str, float]]]]) -> list[str]:
    """Rows of name, then hit rate in exact and tok/s of each mode and machine, per trace."""
    lines = []
    for trace, arms in results.items():
        modes = list(next(iter(arms.values())))
        lines += [
            f"## {trace}",
            "| policy | hits, exact | hits, fast h200 | " + " | ".join(modes) + " |",
        ]
        lines.append("|---" * (len(modes) + 3) + "|")
        for name, found in arms.items():
            hits = [f"{found[mode]['hit_rate']:.3f}" for mode in ("exact_h200", "fast_h200")]
            speeds = [f"{found[mode]['tok_per_s']:.2f}" for mode in modes]
            lines.append("| " + " | ".join([name, *hits, *speeds]) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--steps", type=int, default=768, help="of one stream; four get a third")
    parser.add_argument("--slots", type=int, default=1617)
    parser.add_argument("--overlap", type=float, default=0.5, help="of topics, 0 to 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(ARMS), metavar="NAME")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    try:
        check_numbers(args, ARMS)
        known = set.intersection(*(set(machine.rest_ms) for machine in MACHINES.values()))
        loaded = read_trace(args.trace, known) if args.trace else None
    except Refused as err:
        raise SystemExit(f"error: {err}") from err
    if loaded is not None:
        traces = {f"c{loaded.shape[2]}": loaded}
    else:
        traces = {
            "c1": topical_trace(args.steps, 1, args.overlap, args.seed),
            "c4": topical_trace(args.steps // 3, 4, args.overlap, args.seed),
        }
    with ProcessPoolExecutor(args.workers) as pool:
        jobs = {
            trace: {name: pool.submit(run_arm, name, picks, args.slots) for name in args.only}
            for trace, picks in traces.items()
        }
        results = {
            trace: {name: job.result() for name, job in arms.items()}
            for trace, arms in jobs.items()
        }
    print("\n".join(table(results)))
    if args.out:
        body = {
            "schema": "glm53ctl.bench.replay-policies/1",
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "command": shlex.join(["python3", *sys.argv]),
            "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
            "note": "Speeds are predicted, not measured; per token, after a warm-up.",
            "slots": args.slots,
            "steps": {trace: picks.shape[0] for trace, picks in traces.items()},
            "traces": results,
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
