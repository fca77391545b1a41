"""Exact mode's bits: the tiny checkpoint through the tiers against stock exllamav3, all in VRAM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from gpu_exact import random_ids
from gpu_harness import forward_chunks, generator_of, greedy, load

from glm53_server.engine.exl3_model import LoadedModel, LoadOptions, detach
from glm53_server.engine.exl3_tiers import VramBudget, build_tiers
from glm53_server.moe.layer import ExpertTiers

VOCAB, TOKENS, RECORD_BYTES = 4096, 48, 36864
PROMPTS = [random_ids(VOCAB, n, n) for n in (12, 300, 45, 77, 128, 9, 511, 33)]


@dataclass(frozen=True, slots=True)
class Pair:
    """Both models and a generator over each; `tiers` checks every slot after every decode step."""

    stock: LoadedModel
    tiered: LoadedModel
    tiers: ExpertTiers
    generators: tuple[Any, Any]

    def decode(self, prompts: list[torch.Tensor], **how: Any) -> None:
        expected, found = (greedy(g, prompts, TOKENS, **how) for g in self.generators)
        assert found[0] == expected[0], "other tokens"
        assert found[1] == expected[1], "the same tokens from other logits"
        assert self.tiers.residency.counters()["bad"] == 0


@pytest.fixture(scope="module")
def pair(stock: LoadedModel, tiny_options: LoadOptions) -> Iterator[Pair]:
    tiered, kernels = load(tiny_options, tiered=True)
    assert kernels is not None
    budget = VramBudget(reserve=0, elastic=20 * RECORD_BYTES, stage=8 * RECORD_BYTES, slots=39)
    tiers = build_tiers(tiered, kernels, budget, stage_rows=64)
    tiers.verify_each_step = True
    layout = tiers.residency.layout
    assert tiers.residency.slots < layout.layers * layout.experts / 4
    assert tiers.stager is not None
    assert tiers.stager.capacity > 0
    yield Pair(stock, tiered, tiers, (generator_of(stock, 4, 2048), generator_of(tiered, 4, 2048)))
    torch.cuda.synchronize()
    detach(tiered)
    tiered.model.unload()
    assert tiered.arena is not None
    tiered.arena.close()


@pytest.mark.parametrize(
    ("length", "chunk"),
    [(2000, 2000), (2000, 512), (2000, 100), (700, 256), (40, 40), (9, 9), (8, 8), (5, 1)],
)
def test_prefill_logits(pair: Pair, length: int, chunk: int) -> None:
    ids = random_ids(VOCAB, length, length)
    expected, found = (forward_chunks(m, ids, chunk) for m in (pair.stock, pair.tiered))
    assert expected is not None
    assert found is not None
    assert torch.equal(expected.view(torch.int8), found.view(torch.int8))


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_greedy_decode(pair: Pair, batch: int) -> None:
    for start in range(0, len(PROMPTS), batch):
        pair.decode(PROMPTS[start : start + batch])


def test_decode_after_ten_thousand_tokens_of_churn(pair: Pair) -> None:
    before = pair.tiers.residency.counters()["evictions"]
    churn = random_ids(VOCAB, 10_000, 5)
    with torch.inference_mode():
        for start in range(0, 10_000, 8):
            pair.tiered.model.forward(churn[:, start : start + 8], {"attn_mode": "flash_attn_nc"})
    assert pair.tiers.residency.counters()["evictions"] > before + 1000
    pair.decode(PROMPTS[:1])


def test_a_long_prompt_joins(pair: Pair) -> None:
    stager = pair.tiers.stager
    assert stager is not None
    before = stager.stats.forwards
    pair.decode([*PROMPTS[:2], random_ids(VOCAB, 5000, 9)])
    assert stager.stats.forwards > before, "the long prompt was not staged"


def test_a_stream_is_cancelled_midway(pair: Pair) -> None:
    pair.decode(PROMPTS[:3], cancel_at=20)


def test_tiers_can_be_taken_off_and_put_on_again(pair: Pair) -> None:
    """Runs last: without hooks the tables still serve, from wherever the experts live."""
    residency = pair.tiers.residency
    torch.cuda.synchronize()
    assert pair.tiers.stager is not None
    pair.tiers.stager.end_pass()
    detach(pair.tiered)
    steps = residency.counters()["steps"]
    ids = random_ids(VOCAB, 40, 3)
    expected, found = (forward_chunks(m, ids, 8) for m in (pair.stock, pair.tiered))
    assert expected is not None
    assert found is not None
    assert torch.equal(expected.view(torch.int8), found.view(torch.int8))
    assert residency.counters()["steps"] == steps
