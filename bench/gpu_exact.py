"""Is exact mode bit-identical to stock exllamav3? Tiny checkpoint, then the real layer geometry.

usage: gpu_exact.py [--out DIR] [--tokens 200] [--geometry-layers 8] [--skip-geometry]

Loads stock (all experts in VRAM) and tiered (experts in pinned RAM, a cache under a quarter of them)
side by side and compares logits byte for byte: chunked prefill, greedy decode at batch 1, 2 and 4,
after cache churn, with a long prefill in the middle and with a cancelled stream. Every decode step
all slots are compared with the arena. Exit status 1 on any difference.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
from gpu_harness import TINY, dummy_options, forward_chunks, generator_of, greedy, load, log, save

from glm53_server.engine.exl3_dummy import DummySpec
from glm53_server.engine.exl3_model import LoadOptions
from glm53_server.engine.exl3_tiers import VramBudget, build_tiers

CHECKS: list[dict[str, object]] = []
AHEAD = 2  # experts looked ahead per layer: bits must not depend on it


def check(name: str, same: bool, **figures: object) -> None:
    CHECKS.append({"check": name, "bit_identical": bool(same), **figures})
    log("ok  " if same else "DIFF", name, figures)


def random_ids(vocab: int, length: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(64, vocab, (1, length), generator=generator)


def compare_prefill(stock, tiered, vocab: int, cases: list[tuple[int, int]]) -> None:
    for length, chunk in cases:
        ids = random_ids(vocab, length, length)
        expected, found = forward_chunks(stock, ids, chunk), forward_chunks(tiered, ids, chunk)
        same = torch.equal(expected.view(torch.int8), found.view(torch.int8))
        worst = 0.0 if same else float((expected.float() - found.float()).abs().max())
        check(f"prefill {length} tokens, chunk {chunk}", same, max_difference=worst)


def compare_decode(
    stock_generator, tiered_generator, prompts, tokens: int, name: str, **kwargs
) -> None:
    expected, found = (
        greedy(stock_generator, prompts, tokens, **kwargs),
        greedy(tiered_generator, prompts, tokens, **kwargs),
    )
    check(
        name,
        expected == found,
        tokens=sum(len(x) for x in found[0]),
        logits_rows=sum(len(x) for x in found[1]),
    )


def tiny(tokens: int) -> None:
    options = LoadOptions(directory=TINY, cache_tokens=16384, max_batch=4, chunk_tokens=2048)
    stock, _ = load(options, tiered=False)
    tiered, kernels = load(options, tiered=True)
    budget = VramBudget(0, 20 * 36864, 8 * 36864, slots=39, lookahead=AHEAD)
    tiers = build_tiers(tiered, kernels, budget, stage_rows=64)
    tiers.verify_each_step = True
    log(
        "slots",
        tiers.stager._memory.plan,
        "of",
        tiers.residency.layout.layers * tiers.residency.layout.experts,
    )
    compare_prefill(
        stock,
        tiered,
        4096,
        [(2000, 2000), (2000, 512), (2000, 100), (700, 256), (40, 40), (9, 9), (5, 1)],
    )
    generators = generator_of(stock, 4, 2048), generator_of(tiered, 4, 2048)
    prompts = [random_ids(4096, n, n) for n in (12, 300, 45, 77, 128, 9, 511, 33)]
    for batch in (1, 2, 4):
        for start in range(0, 8, batch):
            group = prompts[start : start + batch]
            compare_decode(
                *generators,
                group,
                tokens,
                f"decode batch {batch}, prompts {start}..{start + batch - 1}",
            )
    with torch.inference_mode():
        churn = random_ids(4096, 10_000, 5)
        for start in range(0, 10_000, 8):
            ids = churn[:, start : start + 8]
            tiered.model.forward(ids, {"attn_mode": "flash_attn_nc"})
    compare_decode(*generators, prompts[:1], tokens, "decode after 10,000 tokens of churn")
    compare_decode(
        *generators,
        [*prompts[:2], random_ids(4096, 5000, 9)],
        tokens,
        "decode with a 5,000-token prompt joining",
    )
    compare_decode(
        *generators, prompts[:3], tokens, "decode with a stream cancelled at 20", cancel_at=20
    )
    counters = tiers.residency.counters()
    check("slots equal the arena after every step", counters["bad"] == 0, **counters)
    log(tiers.stager.stats)
    tiers.lookahead.close()


def geometry(layers: int, tokens: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        options = dummy_options(
            DummySpec(layers=layers),
            Path(folder),
            cache_tokens=16384,
            max_batch=4,
            chunk_tokens=4096,
            fill_threads=14,
        )
        tiered, kernels = load(options, tiered=True)
        stock, _ = load(options, tiered=False)
        experts = tiered.arena.layout.experts * tiered.arena.layout.layers
        budget = VramBudget(0, 3 << 30, 1 << 30, slots=experts // 5, lookahead=AHEAD)
        tiers = build_tiers(tiered, kernels, budget)
        log("slots", tiers.stager._memory.plan, "of", experts)
        compare_prefill(stock, tiered, 150000, [(3000, 3000), (3000, 1024), (9000, 4096)])
        generators = generator_of(stock, 4, 4096), generator_of(tiered, 4, 4096)
        prompts = [random_ids(150000, n, n) for n in (64, 300, 3000, 9000)]
        for batch in (1, 2, 4):
            compare_decode(*generators, prompts[:batch], tokens, f"geometry: decode batch {batch}")
        tiers.residency.verify()
        counters = tiers.residency.counters()
        check("geometry: slots equal the arena", counters["bad"] == 0, **counters)
        log(tiers.stager.stats)
        tiers.lookahead.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--geometry-layers", type=int, default=8)
    parser.add_argument("--skip-geometry", action="store_true")
    args = parser.parse_args()
    started = time.perf_counter()
    tiny(args.tokens)
    if not args.skip_geometry:
        geometry(args.geometry_layers, min(args.tokens, 64))
    same = sum(bool(c["bit_identical"]) for c in CHECKS)
    print(f"\n{same} of {len(CHECKS)} checks bit-identical, {time.perf_counter() - started:.0f} s")
    save("exact-bits", {"checks": CHECKS}, args.out)
    return 0 if same == len(CHECKS) else 1


if __name__ == "__main__":
    sys.exit(main())
