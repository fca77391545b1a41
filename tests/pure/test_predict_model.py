"""The performance model: the published replay, and how predictions must move."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm53ctl.checkpoint import FLASH
from glm53ctl.predict import Rates, split, token_s

# A 3090 on Gen4 x16 with eight channels of DDR4-3200, as measured.
HOST = Rates(
    link=23.6e9,
    tier=90.7e9,
    dram=138e9,
    hit_share=0.3635,
    fixed_s=12.8e-3,
    handoff_s=0.11e-3,
    cached_expert_s=0.034e-3,
)


def test_the_model_replays_the_measured_deployment():
    """179 misses on the CPU and 34.7 over the link: 27.7 tok/s by the model, 28.0 to 28.15 measured."""
    assert 1 / token_s(FLASH, HOST, (179, 34.7)) == pytest.approx(27.7, abs=0.2)


def test_a_balanced_split_ends_both_lanes_together():
    cpu, link = split(FLASH, HOST)
    assert cpu == pytest.approx(169, abs=2)
    assert link == pytest.approx(45, abs=2)
    assert 1 / token_s(FLASH, HOST, (cpu, link)) == pytest.approx(28.6, abs=0.3)


def test_exact_mode_pays_the_link_for_every_miss():
    exact = replace(HOST, tier=0.0)
    assert split(FLASH, exact)[0] == 0
    assert 1 / token_s(FLASH, exact, split(FLASH, exact)) == pytest.approx(9.6, abs=0.3)
    better = replace(exact, hit_share=0.55)
    assert 1 / token_s(FLASH, better, split(FLASH, better)) == pytest.approx(12.4, abs=0.4)


@pytest.mark.parametrize(
    ("link", "expected"),
    [(52e9, 31.8), (12.5e9, 27.1), (6.2e9, 26.2), (3.1e9, 25.7), (0.8e9, 25.3)],
)
def test_the_published_link_table(link, expected):
    rates = replace(HOST, link=link)
    assert 1 / token_s(FLASH, rates, split(FLASH, rates)) == pytest.approx(expected, rel=0.02)


@given(
    factor=st.floats(1, 8),
    name=st.sampled_from(["link", "tier", "dram"]),
    hits=st.floats(0, 1),
)
def test_faster_parts_never_slow_a_token_down(factor, name, hits):
    slow = replace(HOST, hit_share=hits)
    fast = replace(slow, **{name: getattr(slow, name) * factor})
    slow_s, fast_s = (token_s(FLASH, rates, split(FLASH, rates)) for rates in (slow, fast))
    # Handing work over costs a fixed time per layer, so a split is only balanced to that.
    assert fast_s <= slow_s + FLASH.moe_layers * HOST.handoff_s


@given(hits=st.floats(0, 1))
def test_a_split_covers_all_misses(hits):
    rates = replace(HOST, hit_share=hits)
    cpu, link = split(FLASH, rates)
    misses = FLASH.moe_layers * FLASH.experts_per_token * (1 - hits)
    assert cpu >= 0
    assert link >= -1e-9
    assert cpu + link == pytest.approx(misses)
