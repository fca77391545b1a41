"""A decode step on a card of paper: what may run beside what, and what is left when something breaks off."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from paper_card import COMPUTE, LAYERS, PICKS, Broken, Card, Event, Stage, Stream

from glm53_kernels.cuda import CudaKernelError
from glm53_server.moe import cpu_tier, lookahead
from glm53_server.moe.lookahead import AUTO
from glm53_server.moe.pace import MOST
from glm53_server.moe.split import SplitState


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    monkeypatch.setattr(Stream, "made", [], raising=False)
    monkeypatch.setattr(Stream, "host", {}, raising=False)
    monkeypatch.setattr(Event, "made", [], raising=False)
    compute, properties = Stream(), SimpleNamespace(multi_processor_count=4)
    assert compute.cuda_stream == COMPUTE
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: compute)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)

    class Tier:
        mailbox_bytes = staticmethod(lambda pool, hidden: 4096)
        reset = staticmethod(lambda: True)

        def __init__(self, *_: object) -> None: ...

    monkeypatch.setattr(cpu_tier, "CpuTier", Tier)
    return Card()


def change_settings(stage: Stage, chance: random.Random) -> None:
    """What may change between two passes."""
    residency, lane, ahead = stage.residency, stage.lane, stage.ahead
    stage.tiers.hold_prefill = chance.random() < 0.3
    residency.gather_times = [] if chance.random() < 0.1 else None
    residency.gather_repeats = 3 if chance.random() < 0.1 else 1
    residency.admit_limit = chance.choice([256, 256, 2])
    if ahead.paces is None:
        ahead.limit = chance.choice([0, 1, 3, 3])
    if lane is not None:
        lane.enabled = chance.random() < 0.7
        share, offset = chance.choice([0.5, 0.25]), chance.choice([0.5, 0.75])
        lane.split = SplitState(lane.split.costs, share, offset, frozen=True)


MODES = ("exact", "stock kernels", "own kernels")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(20))
def test_nothing_overtakes_what_it_needs(card: Card, seed: int, mode: str) -> None:
    """Passes of any kind, with the lane and without; passes that break off; drains; timed copies."""
    chance = random.Random(seed)
    guesses = [torch.arange(PICKS), torch.arange(PICKS)]
    override = chance.choice([None, lambda layer, rows: chance.choice(guesses)])
    routers = override is None or chance.random() < 0.5
    stage = Stage(card, mode, chance.choice([AUTO, 1]), override, routers=routers)
    for _ in range(150):
        change_settings(stage, chance)
        match chance.choice(["pass"] * 8 + ["break"] * 3 + ["short prompt", "prompt", "drain"]):
            case "pass":
                turns = (chance.randrange(2), chance.randrange(2), chance.randrange(2))
                stage.forward(chance.choice([1, 1, 2]), turns)
            case "break":
                stage.break_off(chance.randrange(1, 9 * LAYERS))
            case "short prompt":
                stage.forward(2, cache_only=True)
            case "prompt":
                stage.forward(100)
            case _:
                stage.tiers.drain()
                stage.residency.evict(0, 1, lock=False)
    assert {"settle", "evict", "look ahead 1", "bring 1"} <= set(card.log)
    numbers = [step.sequence for step in card.ahead]  # one is lost where a call broke off
    assert numbers == sorted({*numbers} - {0})
    assert ("guess 1" in card.log) is routers
    assert ("combine 1" in card.log) is (mode != "exact")


def test_stock_s_kernels_start_behind_the_copies(card: Card) -> None:
    """In exact mode nothing but the look-ahead is beside the compute stream."""
    stage = Stage(card, "exact", 2)
    stage.forward(1)
    expected = ["adopt"]
    for layer in range(LAYERS):
        expected += [f"{what} {layer}" for what in ("route", "step", "gather")]
        if layer < LAYERS - 1:
            expected += [f"{what} {layer + 1}" for what in ("guess", "look ahead", "bring")]
        expected += [f"kernels {layer}"]
    assert card.log == expected


def test_a_look_ahead_begins_with_the_layer_s_copies_and_nobody_waits_for_its_own(
    card: Card,
) -> None:
    """The kernels of the layer run beside it, and the next layer beside its copies."""
    stage = Stage(card, "own kernels", 2)
    stage.forward(1)
    expected = ["adopt"]
    for layer in range(LAYERS):
        expected += [
            f"route {layer}",
            f"step {layer}",
            f"gather {layer}",
            *[f"kernels {layer}"] * 2,
        ]
        if layer < LAYERS - 1:
            expected += [f"{what} {layer + 1}" for what in ("guess", "look ahead", "bring")]
        expected += [f"answer {layer}", f"combine {layer}"]
    assert card.log == expected
    assert {step.admit_limit for step in card.ahead} == {2}
    assert all(step.num_protected == PICKS for step in card.ahead)
    compute = Stream.made[COMPUTE - 1].seen
    assert card.passed(compute, "kernels")
    assert not card.passed(compute, "bring")


@pytest.mark.parametrize("mode", MODES)
def test_slots_given_away_without_a_drain_are_noticed(card: Card, mode: str) -> None:
    """The card of paper itself: it would see a drain that forgets the copies."""
    stage = Stage(card, mode, 1)
    stage.forward(1)
    stage.ahead.wait()
    Stream.made[COMPUTE - 1].synchronize()
    with pytest.raises(AssertionError, match="evict may overtake bring 4"):
        stage.residency.evict(0, 1, lock=False)


def test_a_layer_that_was_not_joined_is_noticed(card: Card) -> None:
    stage = Stage(card, "own kernels", 0)
    stage.break_off(4)
    with pytest.raises(AssertionError, match="evict may overtake step 0"):
        stage.residency.evict(0, 1, lock=False)
    stage.tiers.drain()
    stage.residency.evict(0, 1, lock=False)


def test_inputs_of_a_layer_that_broke_off_are_kept_until_it_is_joined(card: Card) -> None:
    """Stock's allocator would give their memory to what comes next on the compute stream."""
    stage = Stage(card, "own kernels", 0)
    stage.break_off(4)
    assert stage.lane is not None
    assert stage.lane.experts is not None
    picks, weights, x = stage.inputs[0]
    kept = {tensor.data_ptr() for tensor in stage.lane.experts._held}
    assert kept == {picks.data_ptr(), weights.data_ptr(), x.data_ptr()}
    stage.tiers.drain()
    assert stage.lane.experts._held == ()


def test_a_guess_that_fails_leaves_nothing_to_wait_for(card: Card) -> None:
    def guess(layer: int, rows: int) -> torch.Tensor:
        raise Broken

    stage = Stage(card, "exact", 1, guess)
    with pytest.raises(Broken):
        stage.forward(1)
    stage.tiers.drain()
    assert card.ahead == []


@pytest.mark.parametrize("limit", [AUTO, 2])
def test_nothing_is_looked_ahead_any_more_when_a_copy_failed(card: Card, limit: int) -> None:
    stage = Stage(card, "own kernels", limit)
    stage.forward(1)
    before = len(card.ahead)
    stage.residency._arrays["pending"][0] = 2
    card.copier_broken = True
    stage.forward(100)  # also right after a prompt
    for _ in range(3):
        stage.forward(1)
    assert len(card.ahead) == before > 0
    assert stage.residency._arrays["pending"][0] == 0


def test_every_number_of_rows_has_its_own_pace(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams come and go: two share well with many copies, one with none. Prefills take long."""
    now_s = [0.0]
    monkeypatch.setattr(lookahead.time, "monotonic", lambda: now_s[0])
    ahead = Stage(card, "exact", AUTO).ahead
    assert ahead.paces is not None
    for turn in range(120):
        rows = 1 + turn % 2
        ahead.new_pass(0)
        assert ahead.limit == 0
        now_s[0] += 50.0
        for _ in range(100):
            ahead.new_pass(rows)
            now_s[0] += 0.05 + (-0.005 if rows == 2 else 0.005) * ahead.limit
    assert {rows: pace.best for rows, pace in ahead.paces.items()} == {1: 0, 2: MOST}
    assert max(max(pace.took_s.values()) for pace in ahead.paces.values()) < 0.2


def test_rows_that_change_at_every_step_start_as_the_rows_say(card: Card) -> None:
    """No step follows one of its kind: nothing is measured, and nothing goes wrong."""
    ahead = Stage(card, "exact", AUTO).ahead
    assert ahead.paces is not None
    for step in range(2000):
        rows = 1 + step % 8
        ahead.new_pass(rows)
        assert ahead.limit == min(rows, MOST)
    assert all(pace.took_s == {} for pace in ahead.paces.values())


@pytest.mark.parametrize("refused", range(1, 16))
def test_a_layer_that_the_driver_refused_in_its_middle(card: Card, refused: int) -> None:
    """A full card refuses what loads a kernel; the engine goes on after that."""
    stage = Stage(card, "own kernels", 0)
    card.until_refusal = refused
    with pytest.raises(CudaKernelError):
        stage.forward(1)
    stage.tiers.drain()
    stage.residency.evict(0, 1, lock=False)
    for _ in range(3):
        stage.forward(1)
