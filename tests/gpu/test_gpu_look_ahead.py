"""Experts that are copied one layer ahead: who decides, who copies, who takes them in, in any order."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from gpu_rig import DEVICE, Rig, bits

from glm53_kernels.cuda import CudaKernelError
from glm53_server.moe.lookahead import Lookahead
from glm53_server.moe.step_events import StepEvents


def test_it_brings_the_best_guesses_and_counts_nothing_as_used(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    rig.step(0, [1, 2])
    decision = rig.ahead(1, [7, 3, 7 + 2, 4, -1], limit=3)
    assert [expert for expert, _, _ in decision.admissions] == [7, 3, 9]
    rig.check()
    assert rig.step(1, [7, 4]).hits == 1
    rig.check()
    for layer in (2, 1, 2, 1, 1, 2):
        rig.ahead(layer, [5, 1, 0, 8], limit=2)
        rig.check()
        rig.step(layer, [1, 0, 6])
        rig.check()
    assert rig.residency.verify() == 0


def test_it_leaves_the_slots_that_the_layer_before_reads(make_rig: Callable[..., Rig]) -> None:
    rig, chance = make_rig("small", 12), random.Random(5)
    for _ in range(150):
        picks = chance.sample(range(-1, 30), 8)
        rig.step(0, picks)
        held = {rig.slot_of(pick) for pick in picks if pick >= 0}
        decision = rig.ahead(1, chance.sample(range(-1, 40), 8), limit=6, in_use=picks)
        assert not held & {slot for _, slot, _ in decision.admissions}
        rig.check()
        rig.step(1, chance.sample(range(40), 4))
        rig.check()
    assert rig.counted["lookahead"] > 100
    assert rig.residency.verify() == 0


def test_a_copy_under_way_is_no_hit_and_its_slot_nobodys(make_rig: Callable[..., Rig]) -> None:
    """Between the decision and the end of the copies, decode reads at home and takes other slots."""
    rig = make_rig("tiny", 6)
    rig.step(0, [1, 2])
    sequence = rig.ahead.decide(1, [3, 4], limit=2)
    rig.check()
    for picks in ([3, 4], [5, 6], [3, 7], [4, 5]):
        rig.step(1, picks)
        rig.ahead.settle()
        rig.check()
    rig.ahead.bring(sequence)
    rig.ahead.settle()
    rig.ahead.taken_in()
    rig.check()
    assert rig.residency.verify() == 0


def test_a_decision_that_was_skipped_leaves_the_copies_before_it_alone(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig("odd", 12)
    first = rig.ahead.decide(1, [3, 4], limit=2)
    skipped = rig.ahead.decide(2, [5, 6], limit=2)
    rig.ahead.bring(skipped)
    rig.ahead.settle()
    assert not any(rig.memory[slot].any() for _, slot in rig.ahead.pending())
    rig.check()
    rig.ahead.bring(first)
    rig.ahead.bring(skipped)
    rig.ahead.settle()
    rig.ahead.taken_in()
    rig.check()
    assert rig.step(1, [3, 4]).hits == 2
    rig.check()


def test_a_decision_of_nothing_claims_no_copies(make_rig: Callable[..., Rig]) -> None:
    """Its gather may come late, when the next decision has posted."""
    rig = make_rig("odd", 12)
    rig.ahead(1, [3, 4], limit=2)
    nothing = rig.ahead.decide(1, [4, 3], limit=2)
    last = rig.ahead.decide(1, [7], limit=1)
    rig.ahead.bring(nothing)
    rig.ahead.settle()
    rig.check()
    rig.ahead.bring(last)
    rig.ahead.settle()
    rig.ahead.taken_in()
    rig.check()


def test_a_step_takes_in_what_is_done(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig("tiny", 6)
    rig.ahead.bring(rig.ahead.decide(1, [3, 4], limit=2))
    ids = torch.tensor([3, 4, 5], device=DEVICE)
    step = rig.residency.new_step(1)
    step.picks, step.num_picks = ids.data_ptr(), 3
    rig.residency.decode_step(step)
    torch.cuda.synchronize()
    rig.ahead.taken_in()
    assert rig.decided(1, [3, 4, 5], 256).hits == 2
    rig.check()
    assert rig.residency.counters()["lookahead_waits"] == 0


def test_a_step_waits_for_copies_of_what_it_picks(make_rig: Callable[..., Rig]) -> None:
    """Enqueued and picked at once, as often as the copies may be late: always a hit."""
    rig = make_rig("small", 12)
    step = rig.residency.new_step(1)
    step.lookahead, step.admit_limit, step.num_picks = 1, 2, 2
    chance = random.Random(3)
    for _ in range(100):
        ids = torch.tensor(chance.sample(range(40), 2), dtype=torch.int64, device=DEVICE)
        resident = int((rig.residency.slot_of[rig.layout.experts + ids] >= 0).sum())
        step.picks = ids.data_ptr()
        rig.ahead.enqueue(step)
        wanted = rig.residency.new_step(1)
        wanted.picks, wanted.num_picks = ids.data_ptr(), 2
        rig.residency.decode_step(wanted)
        torch.cuda.synchronize()
        counters = rig.residency.counters()
        rig.counted["lookahead"] += 2 - resident
        rig.counted["hits"] += 2
        assert (counters["hits"], counters["misses"]) == (rig.counted["hits"], 0)
        assert counters["lookahead"] == rig.counted["lookahead"]
    assert rig.residency.verify() == 0


def test_layers_looked_ahead_without_a_pause_hold_the_right_bytes(
    make_rig: Callable[..., Rig],
) -> None:
    """Many passes with nothing waited for, decisions skipped or not as it comes; then a drain."""
    rig, chance = make_rig("odd", 24), random.Random(9)
    experts = rig.layout.experts
    guesses = [torch.tensor(chance.sample(range(experts), 8), device=DEVICE) for _ in range(64)]
    ahead = Lookahead(
        rig.residency, None, 3, StepEvents(DEVICE), lambda layer, rows: chance.choice(guesses)
    )
    x = torch.zeros(1, 8, device=DEVICE)
    torch.cuda.synchronize()
    for number in range(300):
        ahead.new_pass(1)
        for layer in range(rig.layout.layers):
            picks = chance.choice(guesses)
            ahead.before_step()
            step = rig.residency.new_step(layer)
            step.picks, step.num_picks = picks.data_ptr(), 8
            rig.residency.decode_step(step)
            ahead.copies_enqueued()
            ahead.after_step(layer, x, picks)
        if number % 50 == 49:
            ahead.drain()
            assert rig.ahead.pending() == []
            assert rig.residency.verify() == 0
    ahead.close()
    counters = rig.residency.counters()
    assert counters["lookahead"] > 100
    assert torch.equal(rig.residency._arrays["locked"], torch.zeros(1, dtype=torch.int32, device=DEVICE))  # fmt: skip


def test_copies_that_fail_end_it_and_nothing_else(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig("tiny", 6)
    guess = torch.tensor([3, 4], device=DEVICE)
    ahead = Lookahead(rig.residency, None, 2, StepEvents(DEVICE), lambda layer, rows: guess)
    rig.residency.slot_address.fill_(16)  # no memory of anybody
    picks = torch.tensor([1, 2], device=DEVICE)
    ahead.before_step()
    ahead.copies_enqueued()
    ahead.after_step(0, torch.zeros(1, 8, device=DEVICE), picks)
    ahead.drain()
    assert ahead.failed
    addresses = [row.data_ptr() for row in rig.memory]
    rig.residency.slot_address.copy_(torch.tensor(addresses, dtype=torch.int64))
    rig.residency.rebuild(0, rig.layout.layers)
    ahead.new_pass(1)
    assert ahead.limit == 0
    held = bits(rig.residency._arrays["locked"])
    assert len(held) == 2
    rig.ring.locked |= held
    (rig.ring.hand,) = rig.residency._arrays["hand"].tolist()
    for chosen in ([3, 4], [5, 6], [3, 7], [4, 5]):
        rig.step(1, chosen)
        rig.check()
    ahead.close()
    ahead.close()
    assert rig.residency.verify() == 0


def test_what_it_cannot_do_is_refused(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    step = rig.residency.new_step(0)
    with pytest.raises(CudaKernelError, match="not a look-ahead step"):
        rig.ahead.enqueue(step)
    step.lookahead = 1
    with pytest.raises(CudaKernelError, match="a layer before it"):
        rig.ahead.enqueue(step)
    step = rig.residency.new_step(1)
    step.lookahead, rig.residency.state.copy_box = 1, 0
    with pytest.raises(CudaKernelError, match="copy box"):
        rig.ahead.enqueue(step)
    rig.check()
