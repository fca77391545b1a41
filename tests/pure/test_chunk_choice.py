"""The prefill chunk: long enough that computing it hides the streaming of the experts, if it fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm53ctl.checkpoint import FLASH
from glm53ctl.chunks import (
    ACTIVATION_BYTES_PER_HIDDEN,
    COMPUTE_S_PER_TOKEN,
    SIZES,
    choose_chunk,
)
from glm53ctl.env import GIB, Settings
from glm53ctl.hardware import Cpu, Driver, DriverState, Gpu, Hardware, Host, Link, Measured, Ram

CARD = Gpu(0, "GPU-1", "Card", capability=(8, 6))
SLOTS = 1617  # of 12,096: what 24 GiB hold


def machine(gb_per_s: float | None, card: Gpu = CARD) -> Hardware:
    return Hardware(
        cpu=Cpu("x86_64", "CPU", frozenset(), (0,), (0,), (0,)),
        ram=Ram(256 * GIB, 256 * GIB),
        driver=Driver(DriverState.OK, "580.65.06", (13, 0)),
        host=Host("Linux", "6.8"),
        gpus=(card,),
        measured=Measured(h2d_bytes_per_s=None if gb_per_s is None else gb_per_s * 1e9),
    )


def chosen(gb_per_s: float | None, slots: int = SLOTS, card: Gpu = CARD, **more: int) -> int:
    settings = replace(Settings(), **more) if more else Settings()
    return int(choose_chunk(machine(gb_per_s, card), card, FLASH, settings, (slots, GIB)).value)


def test_on_an_h200_the_longer_chunk_as_measured() -> None:
    """54 GB/s: 990 tok/s at 8k in chunks of 4,096 and 1,656 in chunks of 8,192."""
    assert chosen(54, card=replace(CARD, capability=(9, 0))) == 8192


@pytest.mark.parametrize(
    ("gb_per_s", "expected"), [(50, 4096), (25, 8192), (12.5, 8192), (3, 8192)]
)
def test_on_a_3090_by_its_link(gb_per_s: float, expected: int) -> None:
    assert chosen(gb_per_s) == expected


def test_a_card_that_holds_more_streams_less() -> None:
    assert chosen(25, slots=6000) == 4096
    everything = choose_chunk(
        machine(25), CARD, FLASH, Settings(), (FLASH.moe_layers * FLASH.experts, GIB)
    )
    assert (everything.value, everything.why) == ("4096", "no expert is streamed")


def test_an_unknown_link_gives_the_short_chunk_and_says_so() -> None:
    choice = choose_chunk(machine(None), CARD, FLASH, Settings(), (SLOTS, GIB))
    assert (choice.value, choice.why) == ("4096", "the link's speed is not known")


def test_a_link_that_was_not_measured_counts_by_its_width() -> None:
    wide, narrow = (replace(CARD, link=Link(4, width)) for width in (16, 4))
    assert chosen(None, card=wide, slots=4000) == 4096
    assert chosen(None, card=narrow, slots=4000) == 8192


def test_what_does_not_fit_is_not_chosen_and_that_is_said() -> None:
    small = 2 * Settings().vram_stage_bytes + GIB
    assert chosen(3, vram_elastic_bytes=small) == 4096
    choice = choose_chunk(
        machine(3), CARD, FLASH, replace(Settings(), vram_elastic_bytes=small), (SLOTS, GIB)
    )
    assert "more does not fit" in choice.why
    assert chosen(3, slots=3000, vram_elastic_bytes=64 * GIB) == SIZES[-1]


@given(
    st.floats(0.5, 120),
    st.integers(0, 12096),
    st.sampled_from([(8, 0), (8, 6), (8, 9), (9, 0), (12, 0), None]),
    st.integers(6, 40),
)
def test_it_hides_the_streaming_or_is_the_longest_that_fits(
    gb_per_s: float, slots: int, capability: tuple[int, int] | None, elastic_gib: int
) -> None:
    card = replace(CARD, capability=capability)
    chunk = chosen(gb_per_s, slots, card, vram_elastic_bytes=elastic_gib * GIB)
    elastic = min(elastic_gib * GIB, slots * FLASH.expert_bytes)
    room = GIB + elastic - 2 * Settings().vram_stage_bytes
    fits = [
        n for n in SIZES if n == SIZES[0] or ACTIVATION_BYTES_PER_HIDDEN * FLASH.hidden * n <= room
    ]
    assert chunk in fits
    token_s = COMPUTE_S_PER_TOKEN.get(capability or (8, 6), 0.4e-3)
    stream_s = (FLASH.expert_total_bytes - slots * FLASH.expert_bytes) / (gb_per_s * 1e9)
    if chunk < max(fits):
        assert chunk * token_s >= stream_s * 0.999
    if chunk > SIZES[0]:
        assert chunk / 2 * token_s < stream_s * 1.001


def test_slots_that_are_not_there_cannot_be_borrowed() -> None:
    """10 GiB may be borrowed, but this card's cache has 4."""
    assert chosen(3, slots=4 * GIB // FLASH.expert_bytes) == 4096
