"""What the tiers do around a forward pass: decode, prefill, and what lies between, on recorders."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glm53_server.moe.layer import DECODE_ROWS, ExpertTiers

LAYERS, PICKS, HIDDEN, STAGE_ROWS = 3, 4, 16, 64


class Recorder:
    """Everything the tiers call, in one list; `in_prefill` and `passing` behave like the stager's.

    As the CPU lane it has no GPU experts, unless a test sets `experts`: then its steps have runs.
    """

    def __init__(self, capacity: int = 8) -> None:
        self.calls: list[Any] = []
        self.experts: Any = None
        self.capacity = capacity
        self.in_prefill = self.passing = False
        self.layout = SimpleNamespace(layers=LAYERS)

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> None:
            values = [a for a in arguments if isinstance(a, int)] + sorted(named.items())
            self.calls.append((name, *values))

        return call

    def new_step(self, layer: int) -> SimpleNamespace:
        return SimpleNamespace(layer=layer, mailbox=0, runs=0)

    def fill(self, step: SimpleNamespace, x: torch.Tensor, weights: torch.Tensor) -> None:
        del x, weights
        self.calls.append(("fill",))
        step.mailbox, step.runs = 1, int(self.experts is not None)

    def begin(
        self, step: SimpleNamespace, x: torch.Tensor, picks: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        del x
        self.calls.append(("begin", step.layer, picks.numel()))
        return torch.zeros_like(weights)

    def decode_step(self, step: SimpleNamespace) -> None:
        self.calls.append(("decode_step", step.layer, step.num_picks))

    def begin_pass(self, *, skip_last: bool) -> None:
        self.calls.append(("begin_pass", skip_last))
        self.in_prefill = self.passing = True

    def end_pass(self) -> None:
        self.passing = False

    def leave(self) -> None:
        self.calls.append("leave")
        self.in_prefill = False

    def taken(self) -> list[Any]:
        calls, self.calls = self.calls, []
        return calls


def tiers_over(recorder: Recorder, *, lane: bool = False, **options: Any) -> ExpertTiers:
    everything: Any = recorder
    return ExpertTiers(
        everything, everything, stage_rows=STAGE_ROWS, cpu_lane=everything if lane else None, **options
    )  # fmt: skip


def routed(tiers: ExpertTiers, layer: int, rows: int) -> torch.Tensor:
    """The weights that stock's kernels are given; the router's are 1."""
    picks = torch.arange(rows * PICKS).view(rows, PICKS)
    used, weights = tiers.on_route(layer, picks, torch.ones(rows, PICKS), torch.zeros(rows, HIDDEN))
    assert used is picks
    assert weights.shape == (rows, PICKS)
    return weights


@pytest.mark.parametrize("rows", [1, 4, DECODE_ROWS])
def test_decode_admits_layer_by_layer(rows: int) -> None:
    recorder = Recorder()
    tiers = tiers_over(recorder)
    tiers.on_pass(rows, cache_only=False)
    assert recorder.taken() == [("poll_refill",)]
    for layer in range(LAYERS):
        assert routed(tiers, layer, rows).all()
        tiers.on_combine(layer, torch.zeros(rows, HIDDEN))
        assert recorder.taken() == [("decode_step", layer, rows * PICKS)]
    assert (tiers.decode_steps, tiers.in_place_passes) == (1, 0)


def test_a_long_prompt_is_staged_one_layer_ahead() -> None:
    recorder = Recorder()
    tiers = tiers_over(recorder)
    tiers.on_pass(STAGE_ROWS, cache_only=True)
    assert recorder.taken() == [("begin_pass", True)]
    assert routed(tiers, 1, STAGE_ROWS).all()
    tiers.on_combine(1, torch.zeros(1, STAGE_ROWS, HIDDEN))
    assert recorder.taken() == [("before_layer", 1), ("after_layer",)]
    assert tiers.decode_steps == 0


def test_tens_of_tokens_are_read_in_place() -> None:
    recorder = Recorder()
    tiers = tiers_over(recorder)
    tiers.on_pass(STAGE_ROWS - 1, cache_only=False)
    routed(tiers, 0, STAGE_ROWS - 1)
    assert recorder.taken() == []
    assert tiers.in_place_passes == 1


def test_the_rest_of_a_staged_prompt_is_staged_too() -> None:
    """The slots are given up already, so a shorter chunk is worth it."""
    recorder = Recorder()
    tiers = tiers_over(recorder)
    tiers.on_pass(STAGE_ROWS, cache_only=False)
    tiers.on_pass(STAGE_ROWS // 4, cache_only=False)
    tiers.on_pass(STAGE_ROWS // 4 - 1, cache_only=False)
    assert recorder.taken() == [("begin_pass", False)] * 2
    assert tiers.in_place_passes == 1


def test_without_room_for_staging_prompts_are_read_in_place() -> None:
    recorder = Recorder(capacity=0)
    tiers = tiers_over(recorder)
    tiers.on_pass(1000, cache_only=False)
    assert recorder.taken() == []
    assert tiers.in_place_passes == 1


def test_decode_takes_the_slots_back_unless_a_prompt_is_being_ingested() -> None:
    recorder = Recorder()
    tiers = tiers_over(recorder)
    tiers.on_pass(STAGE_ROWS, cache_only=False)
    recorder.taken()
    tiers.hold_prefill = True
    tiers.on_pass(2, cache_only=False)
    assert recorder.taken() == [("poll_refill",)]
    assert recorder.in_prefill
    tiers.hold_prefill = False
    tiers.on_pass(2, cache_only=False)
    assert recorder.taken() == ["leave", ("poll_refill",)]


def test_the_cpu_lane_is_filled_before_the_step_and_combined_after_it() -> None:
    recorder = Recorder()
    tiers = tiers_over(recorder, lane=True)
    tiers.on_pass(2, cache_only=False)
    assert recorder.taken() == [("poll_refill",), ("after_step",)]
    assert routed(tiers, 1, 2).all()
    tiers.on_combine(1, torch.zeros(2, HIDDEN))
    assert recorder.taken() == [("fill",), ("decode_step", 1, 2 * PICKS), ("combine",)]
    tiers.on_pass(STAGE_ROWS, cache_only=False)
    routed(tiers, 1, STAGE_ROWS)
    tiers.on_combine(1, torch.zeros(STAGE_ROWS, HIDDEN))
    assert ("fill",) not in recorder.calls, "prefill stays on the GPU"


def test_experts_of_our_own_take_the_step_and_stock_computes_none() -> None:
    recorder = Recorder()
    recorder.experts = SimpleNamespace(join=lambda: recorder.calls.append(("join",)))
    tiers = tiers_over(recorder, lane=True)
    tiers.on_pass(2, cache_only=False)
    assert recorder.taken() == [("join",), ("poll_refill",), ("after_step",)]
    assert not routed(tiers, 1, 2).any()
    tiers.on_combine(1, torch.zeros(2, HIDDEN))
    assert recorder.taken() == [("fill",), ("begin", 1, 2 * PICKS), ("combine",)]
    tiers.on_pass(2, cache_only=True)
    recorder.taken()
    assert routed(tiers, 1, 2).all(), "a prefill's bits are stock's"
    assert recorder.taken() == [("decode_step", 1, 2 * PICKS)]


def test_a_layer_that_was_never_ended_is_joined_before_slots_are_given_away() -> None:
    recorder = Recorder()
    recorder.experts = SimpleNamespace(join=lambda: recorder.calls.append(("join",)))
    tiers = tiers_over(recorder, lane=True)
    ahead: Any = recorder
    tiers.lookahead = ahead
    tiers.drain()
    assert recorder.taken() == [("join",), ("drain",)]
    tiers.on_pass(STAGE_ROWS, cache_only=False)
    calls = recorder.taken()
    assert calls[0] == ("join",), "the copies of a guess may wait for what was not ended"
    assert calls.index(("drain",)) < calls.index(("begin_pass", False))


def test_a_look_ahead_follows_a_step_of_our_own_experts_too() -> None:
    """They record what it waits for; only steps on the compute stream are announced."""
    recorder = Recorder()
    recorder.experts = SimpleNamespace(join=lambda: None)
    tiers = tiers_over(recorder, lane=True)
    ahead: Any = recorder
    tiers.lookahead = ahead
    routed(tiers, 0, 1)
    assert recorder.taken() == [("fill",), ("begin", 0, PICKS), ("after_step", 0)]


def test_the_debug_mode_checks_every_decode_step() -> None:
    recorder = Recorder()
    tiers = tiers_over(recorder)
    tiers.verify_each_step = True
    tiers.on_pass(1, cache_only=False)
    assert ("verify",) in recorder.taken()


def test_an_override_names_the_picks_that_everybody_uses() -> None:
    recorder = Recorder()
    instead, seen = torch.full((1, PICKS), 7), []

    def override(layer: int, picks: torch.Tensor) -> torch.Tensor:
        del picks
        recorder.calls.append(("override", layer))
        return instead

    tiers = tiers_over(recorder, route_override=override)
    tiers.recorder = lambda layer, picks: seen.append((layer, picks))
    given, weights = torch.zeros((1, PICKS), dtype=torch.int64), torch.ones(1, PICKS)
    used = tiers.on_route(2, given, weights, torch.zeros(1, HIDDEN))
    assert used == (instead, weights)
    assert tiers._steps[2].picks == instead.data_ptr()
    assert seen == [(2, instead)]
    assert recorder.taken() == [("override", 2), ("decode_step", 2, PICKS)]


def test_a_look_ahead_guesses_after_each_decode_step_and_is_drained_before_a_prefill() -> None:
    recorder = Recorder()
    tiers = tiers_over(recorder)
    ahead: Any = recorder
    tiers.lookahead = ahead
    tiers.on_pass(1, cache_only=False)
    assert recorder.taken() == [("new_pass", 1), ("poll_refill",)]
    for rows in (1, 2):
        routed(tiers, 0, rows)
        tiers.on_combine(0, torch.zeros(rows, HIDDEN))
        assert recorder.taken() == [
            ("before_step",), ("decode_step", 0, rows * PICKS), ("copies_enqueued",), ("after_step", 0),
        ]  # fmt: skip
    tiers.on_pass(100, cache_only=False)
    assert recorder.taken() == [("new_pass", 0), ("drain",), ("begin_pass", False)]
    routed(tiers, 0, 100)
    assert ("before_step",) not in recorder.taken()


@pytest.mark.parametrize(("cache_only", "asked"), [(False, True), (True, False)])
def test_a_short_prompt_never_meets_the_cpu_lane(cache_only: bool, asked: bool) -> None:
    recorder = Recorder()
    tiers = tiers_over(recorder, lane=True)
    tiers.on_pass(5, cache_only=cache_only)
    recorder.taken()
    routed(tiers, 0, 5)
    assert (("fill",) in recorder.taken()) is asked
