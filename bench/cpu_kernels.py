"""How fast one core streams trellis through a full-size expert, beside what the memory can deliver.

    python bench/cpu_kernels.py [--hidden 4096] [--intermediate 2048] [--bits 3] [--rounds 5] [--out FILE]

Prints GB/s of trellis for every instruction set and precision this CPU has, for 1..N threads, and the
memory's read bandwidth at the same thread counts. The experts do not fit the last-level cache; arms take
turns within a round, so that a drift of the machine meets all of them. The result goes to bench/results.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import cpuinfo
import numpy as np

from glm53_kernels import (
    CpuKernels,
    Expert,
    ExpertTable,
    Isa,
    Linear,
    Picks,
    Precision,
    Unsupported,
)
from glm53ctl.bench import provenance

ROOT = Path(__file__).resolve().parent.parent
WORKING_SET_BYTES = 768 << 20  # several times the largest last-level cache
ARMS: tuple[tuple[Isa, Precision], ...] = (
    ("scalar", "exact"),
    ("avx2", "exact"),
    ("avx2", "fast"),
    ("avx512", "exact"),
    ("avx512", "fast"),
)


@dataclass(frozen=True, slots=True)
class Arm:
    """One thing to time: `run` reads `bytes_read` bytes."""

    name: str
    threads: int
    bytes_read: int
    run: Callable[[], object]


def make_experts(hidden: int, intermediate: int, bits: int, count: int) -> list[Expert]:
    """Random experts whose trellises share one array: large, so that numpy asks for huge pages for it."""
    rng = np.random.default_rng(0)
    halves = hidden * intermediate * bits // 16  # int16 values of one trellis
    arena = rng.integers(-(2**15), 2**15, 3 * count * halves, dtype=np.int16)

    def linear(index: int, in_features: int, out_features: int) -> Linear:
        trellis = arena[index * halves : (index + 1) * halves]
        suh = np.ones(in_features, np.float16)
        svh = np.full(out_features, in_features**-0.5, np.float16)
        return Linear(in_features, out_features, bits, trellis, suh, svh)

    def expert(index: int) -> Expert:
        gate, up = (linear(3 * index + part, hidden, intermediate) for part in (0, 1))
        return Expert(gate, up, linear(3 * index + 2, intermediate, hidden))

    return [expert(index) for index in range(count)]


def kernels_of(threads: int) -> Iterator[CpuKernels]:
    """Every instruction set and precision that this CPU has."""
    for isa, precision in ARMS:
        with contextlib.suppress(Unsupported):
            yield CpuKernels(threads=threads, isa=isa, precision=precision)


def one_row(count: int) -> Picks:
    """One row through the first `count` experts, each with weight 1."""
    return Picks(
        count,
        np.arange(count, dtype=np.int32),
        np.zeros(count, np.int32),
        np.ones(count, np.float32),
    )


def expert_arms(table: ExpertTable, bits: int, threads: int) -> list[Arm]:
    """One row through every expert, as one call: what a decode step asks of the kernels."""
    x = np.random.default_rng(1).normal(size=(1, table.hidden)).astype(np.float32)
    out = np.zeros_like(x)
    expert_bytes = 3 * table.hidden * table.intermediate * bits // 8
    arms: list[Arm] = []
    for kernels in kernels_of(threads):
        # The scalar twin is some fifty times slower: one expert is enough to time it.
        picks = one_row(1 if kernels.isa == "scalar" else len(table))

        def run(kernels: CpuKernels = kernels, picks: Picks = picks) -> None:
            kernels.expert_forward(table, x, out, rows=1, picks=picks)

        arms.append(Arm(name_of(kernels), threads, picks.count * expert_bytes, run))
    return arms


def name_of(kernels: CpuKernels) -> str:
    return f"{kernels.isa} {kernels.precision}"


def errors(expert: Expert) -> dict[str, float]:
    """Relative RMS of one full-size expert against float64 on its dequantised weights, by arm."""
    x = np.random.default_rng(2).normal(size=(1, expert.gate.in_features)).astype(np.float32)
    scalar = CpuKernels(isa="scalar")

    def through(linear: Linear, inputs: np.ndarray) -> np.ndarray:
        weight = np.empty((linear.out_features, linear.in_features), np.float32)
        scalar.linear_dequant(linear, weight)
        return inputs @ weight.astype(np.float64).T

    gate, up = through(expert.gate, x), through(expert.up, x)
    want = through(
        expert.down, np.minimum(gate / (1 + np.exp(-gate)), 10.0) * np.clip(up, -10.0, 10.0)
    )
    table, found = ExpertTable([expert], act_limit=10.0), {}
    for kernels in kernels_of(threads=1):
        out = np.zeros_like(x)
        kernels.expert_forward(table, x, out, rows=1, picks=one_row(1))
        found[name_of(kernels)] = float(np.sqrt(np.mean((out - want) ** 2) / np.mean(want**2)))
    return found


def call_microseconds(threads: int, calls: int = 300) -> float:
    """Median time of the smallest call there is: what the loops over the pool cost, and the binding."""
    kernels = CpuKernels(threads=threads)
    table = ExpertTable(make_experts(256, 128, 1, 1))
    x, out, picks = np.ones((1, 256), np.float32), np.zeros((1, 256), np.float32), one_row(1)
    times: list[float] = []
    for _ in range(calls):
        started = time.perf_counter()
        kernels.expert_forward(table, x, out, rows=1, picks=picks)
        times.append(time.perf_counter() - started)
    return 1e6 * statistics.median(times)


def memory_arm(threads: int) -> Arm:
    """Every thread sums its own part of a buffer: plain sequential reads."""
    parts = np.array_split(np.ones(2 * WORKING_SET_BYTES // 8, np.int64), threads)
    pool = ThreadPoolExecutor(threads)

    def run() -> None:
        list(pool.map(np.sum, parts))

    return Arm("memory read", threads, 2 * WORKING_SET_BYTES, run)


@dataclass(frozen=True, slots=True)
class Sample:
    """GB/s of one run: by the clock, and per second of processor time that the process was given.

    The second is what one core can do even when other programs share the machine.
    """

    wall: float
    core: float


def measure(arms: list[Arm], rounds: int) -> dict[tuple[str, int], list[Sample]]:
    """Samples of every round, arms interleaved; the first round only warms up."""
    samples: dict[tuple[str, int], list[Sample]] = {(arm.name, arm.threads): [] for arm in arms}
    for round_index in range(rounds + 1):
        for arm in arms:
            wall, core = time.perf_counter(), time.process_time()
            arm.run()
            wall, core = time.perf_counter() - wall, time.process_time() - core
            if round_index > 0:
                gigabytes = arm.bytes_read / 1e9
                samples[arm.name, arm.threads].append(Sample(gigabytes / wall, gigabytes / core))
    return samples


def report(
    options: argparse.Namespace, samples: dict[tuple[str, int], list[Sample]]
) -> dict[str, object]:
    return {
        "what": "cpu_kernels",
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": provenance.commit(),
        "command": shlex.join(["python3", *sys.argv]),
        "library": CpuKernels().build_id,
        "cpu": cpuinfo.get_cpu_info().get("brand_raw", "unknown"),
        "cpus": len(os.sched_getaffinity(0)),
        "load_average_1min": os.getloadavg()[0],
        "expert": {
            "hidden": options.hidden,
            "intermediate": options.intermediate,
            "bits": options.bits,
        },
        "rates": [
            {
                "arm": name,
                "threads": threads,
                "gb_s_median": round(statistics.median(s.wall for s in runs), 3),
                "gb_s_best": round(max(s.wall for s in runs), 3),
                "gb_s_per_core_median": round(statistics.median(s.core for s in runs), 3),
                "gb_s_per_core_best": round(max(s.core for s in runs), 3),
                "rounds": len(runs),
            }
            for (name, threads), runs in samples.items()
        ],
    }


def show(result: dict[str, object]) -> None:
    print(
        f"{result['cpu']}, {result['cpus']} cpus, load {result['load_average_1min']:.1f}, expert {result['expert']}"
    )
    columns = ("gb_s_median", "gb_s_best", "gb_s_per_core_median", "gb_s_per_core_best")
    print(f"{'arm':14} {'threads':>7} " + " ".join(f"{column:>20}" for column in columns))
    rates: list[dict[str, object]] = result["rates"]  # pyright: ignore[reportAssignmentType]
    for rate in sorted(rates, key=lambda rate: (str(rate["arm"]), rate["threads"])):
        print(
            f"{rate['arm']:14} {rate['threads']:>7} "
            + " ".join(f"{rate[c]:>20.3f}" for c in columns)
        )
    print(f"relative RMS against float64: {result['relative_rms']}")
    print(f"smallest call, us by threads: {result['call_us']}")


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--intermediate", type=int, default=2048)
    parser.add_argument("--bits", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--threads", type=int, nargs="+", help="thread counts (default: 1, 2, 4 ... all)"
    )
    parser.add_argument("--out", type=Path)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = parse(argv)
    cpus = len(os.sched_getaffinity(0))
    counts = options.threads or sorted({n for n in (1, 2, 4, 8, 14, cpus) if n <= cpus})
    expert_bytes = 3 * options.hidden * options.intermediate * options.bits // 8
    count = max(2, WORKING_SET_BYTES // expert_bytes)
    experts = make_experts(options.hidden, options.intermediate, options.bits, count)
    table = ExpertTable(experts, act_limit=10.0)
    arms = [arm for n in counts for arm in [*expert_arms(table, options.bits, n), memory_arm(n)]]
    result = report(options, measure(arms, options.rounds))
    result["relative_rms"] = errors(experts[0])
    result["call_us"] = {str(threads): round(call_microseconds(threads), 1) for threads in counts}
    show(result)
    out = options.out or ROOT / f"bench/results/{datetime.now(UTC):%Y-%m-%d}-cpu-kernels.json"
    out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written to {out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
