"""The arithmetic of memory: slots, staging copies, records, and what VRAM is left for them."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glm53_server.engine.exl3_tiers import VramBudget, free_for_slots
from glm53_server.moe.arena import RecordLayout
from glm53_server.moe.slots import CHUNK_BYTES, SlotMemory, SlotPlan, plan_slots
from glm53_server.moe.stage_plan import plan_stage, slot_runs

GIB = 1 << 30
FLASH_RECORD = 3 * 4096 * 2048 * 3 // 8

record_sizes = st.sampled_from([4608, 36864, FLASH_RECORD, CHUNK_BYTES, 2 * CHUNK_BYTES])
amounts = st.integers(0, 80 * GIB)


def planned(
    free: int, record: int, *, stage: int = 0, activation: int = 0, most: int = 12096
) -> SlotPlan:
    return plan_slots(free, record, stage_bytes=stage, activation_bytes=activation, max_slots=most)


@given(amounts, record_sizes, amounts, amounts, st.integers(0, 12096))
def test_slots_fit_and_nothing_is_wasted(free, record, stage, activation, most) -> None:
    plan = planned(free, record, stage=stage, activation=activation, most=most)
    assert min(plan.base, plan.stage, plan.flex_chunks) >= 0
    assert plan.slots_per_chunk >= 1
    assert plan.total == min(free // record, most)
    assert plan.total * record <= free
    assert plan.stage * record <= stage
    assert plan.base + 2 * plan.stage + plan.flex == plan.total
    assert plan.flex_first + plan.flex == plan.total
    assert plan.elastic == plan.total - plan.base
    assert 2 * plan.stage <= plan.total / 2, "staging leaves decode no cache"
    if plan.flex * record < activation:  # not covered: then no further chunk fits
        assert plan.total - 2 * plan.stage - plan.flex < plan.slots_per_chunk
    elif plan.flex_chunks:  # covered, with no chunk too many
        assert (plan.flex_chunks - 1) * plan.slots_per_chunk * record < activation


@given(amounts, amounts, record_sizes, amounts, amounts)
def test_more_memory_never_means_fewer_slots(one, other, record, stage, activation) -> None:
    less, more = sorted((one, other))
    small = planned(less, record, stage=stage, activation=activation)
    large = planned(more, record, stage=stage, activation=activation)
    assert small.total <= large.total
    assert small.stage <= large.stage
    assert 4 * large.stage <= large.total


def test_a_24_gib_card_with_the_real_expert() -> None:
    plan = planned(10 * GIB, FLASH_RECORD, stage=int(2.6 * GIB), activation=2 * GIB)
    assert plan.total == 10 * GIB // FLASH_RECORD == 1137
    assert plan.stage == 1137 // 4
    assert plan.slots_per_chunk == 28
    assert plan.flex >= 2 * GIB // FLASH_RECORD


def test_no_memory_means_no_slots() -> None:
    assert planned(FLASH_RECORD - 1, FLASH_RECORD, stage=GIB, activation=GIB).total == 0


@given(st.data())
def test_copies_bring_exactly_the_chosen_experts(data) -> None:
    experts = data.draw(st.integers(1, 60))
    missing = sorted(data.draw(st.sets(st.integers(0, experts - 1))))
    heat = data.draw(st.lists(st.integers(0, 5), min_size=experts, max_size=experts))
    capacity = data.draw(st.integers(0, 60))
    record, home, destination = 48, 1 << 20, 1 << 30
    stage = plan_stage(
        missing, heat, capacity=capacity, home=home, destination=destination, record_bytes=record
    )
    arrived: dict[int, int] = {}  # position in the buffer -> expert
    for source, target, size in stage.runs:
        assert size > 0
        assert size % record == (source - home) % record == (target - destination) % record == 0
        for at in range(0, size, record):
            position = (target - destination + at) // record
            assert position not in arrived, "two copies into one place"
            arrived[position] = (source - home + at) // record
    assert arrived == dict(enumerate(stage.experts))
    assert len(stage.experts) == min(len(missing), capacity)
    assert list(stage.experts) == sorted(set(stage.experts))
    left = set(missing) - set(stage.experts)
    assert set(stage.experts) <= set(missing)
    if left and stage.experts:
        assert min(heat[e] for e in stage.experts) >= max(heat[e] for e in left)
    for (source, _, size), (following, _, _) in zip(stage.runs, stage.runs[1:], strict=False):
        assert following > source + size, "neighbours were copied one by one"


def test_a_layer_that_is_all_missing_is_one_copy() -> None:
    stage = plan_stage(list(range(288)), [0] * 288, capacity=288, home=0, destination=1 << 40, record_bytes=FLASH_RECORD)  # fmt: skip
    assert stage.runs == ((0, 1 << 40, 288 * FLASH_RECORD),)


@given(st.sets(st.integers(0, 200)).map(sorted), st.integers(1, 40))
def test_runs_of_slots_are_maximal(slots: list[int], longest: int) -> None:
    runs = slot_runs(slots, longest)
    assert [first + i for first, count in runs for i in range(count)] == slots
    assert all(1 <= count <= longest for _, count in runs)
    for (first, count), (following, _) in itertools.pairwise(runs):
        assert count == longest or following > first + count


@given(amounts, amounts, amounts, st.none() | amounts)
def test_what_is_left_for_slots(free, used, reserve, limit) -> None:
    total = free + used
    left = free_for_slots(VramBudget(reserve, 0, 0, limit=limit), free, total)
    assert 0 <= left <= free
    cap = total if limit is None else min(limit, total)
    if left:
        assert used + left + reserve <= cap
        assert left == min(free, cap - used) - reserve
    else:
        assert cap - used <= reserve or free <= reserve


@pytest.mark.parametrize(("limit", "left"), [(None, 60), (24, 4), (20, 0), (200, 60)])
def test_a_cap_on_vram_counts_what_is_used_already(limit: int | None, left: int) -> None:
    assert free_for_slots(VramBudget(reserve=1, elastic=0, stage=0, limit=limit), 61, 80) == left


def test_a_record_is_gate_up_down() -> None:
    layout = RecordLayout(layers=3, experts=5, gate_bytes=64, up_bytes=96, down_bytes=128)
    assert layout.offsets == (0, 64, 160)
    assert layout.record_bytes == 288
    assert layout.layer_bytes == 5 * 288
    assert layout.total_bytes == 15 * 288


RECORD = 64


@given(
    st.integers(0, 50), st.integers(1, 9), st.lists(st.integers(0, 60 * RECORD), max_size=6),
    st.lists(st.integers(0, 60 * RECORD), max_size=6),
)  # fmt: skip
def test_a_cache_that_shrinks_and_grows_keeps_its_numbers(base, chunk, shrinks, grows) -> None:
    """Slots are given up from the end of the base and come back in order; the others do not move."""
    memory = SlotMemory(SlotPlan(base, 3, 1, chunk), RECORD, torch.device("cpu"))
    others = memory.addresses()[base:]
    for wanted in shrinks:
        before = memory.addresses()
        first, count = memory.last_chunks(wanted)
        assert first + count == memory.base_held
        assert count * RECORD >= wanted or first == 0, "more could have been given"
        assert not count or (count - chunk) * RECORD < wanted, "a chunk too many"
        memory.give_up(first)
        after = memory.addresses()
        assert after[:first] == before[:first]
        assert after[first:base] == [0] * (base - first)
        assert after[base:] == others
    for spare in grows:
        held = memory.base_held
        first, count = memory.grow(spare)
        assert (first, first + count) == (held, memory.base_held)
        assert count * RECORD <= spare
        after = memory.addresses()
        assert all(after[: held + count])
        assert not any(after[held + count : base])
    memory.grow(base * RECORD)
    assert memory.base_held == base
    addresses = memory.addresses()
    assert len(set(addresses)) == len(addresses) == SlotPlan(base, 3, 1, chunk).total
