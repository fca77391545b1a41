"""Synthetic routing has the statistics that were measured of the model, and is the same every time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from glm53_server.moe.routing_trace import (
    GUESS_RECALL,
    REPEAT_TARGET,
    RoutingTrace,
    TraceSpec,
    popularity_sigma,
)

FULL = TraceSpec(layers=42, experts=288, picks=8, steps=96, streams=2, prefill_rows=64)
SMALL = TraceSpec(layers=3, experts=16, picks=4, steps=6, streams=2, prefill_rows=10)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def full() -> Iterator[RoutingTrace]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield RoutingTrace(FULL, CPU)
    torch.set_num_threads(threads)


def repeats(decode: torch.Tensor) -> torch.Tensor:
    """Share of picks that the same stream made in the same layer one step before, per layer."""
    again = (decode[1:, :, :, :, None] == decode[:-1, :, :, None, :]).any(-1)
    return again.float().mean((0, 2, 3))


def test_about_a_third_of_the_picks_repeat(full: RoutingTrace) -> None:
    assert 0.30 <= float(repeats(full.decode).mean()) <= 0.36
    assert float(repeats(full.decode).mean()) == pytest.approx(REPEAT_TARGET, abs=0.03)


def test_deeper_layers_are_more_skewed(full: RoutingTrace) -> None:
    """The share of picks that the hottest tenth of a layer's experts takes."""

    def share(layer: int) -> float:
        counts = full.decode[:, layer].flatten().bincount(minlength=FULL.experts).float()
        return float(counts.topk(29).values.sum() / counts.sum())

    shares = [share(layer) for layer in range(FULL.layers)]
    early, middle, late = sum(shares[:2]) / 2, sum(shares[5:10]) / 5, sum(shares[30:]) / 12
    assert early + 0.05 < middle < late
    assert early < 0.45
    assert late > 0.5


def test_popularity_follows_the_depth() -> None:
    sigmas = [popularity_sigma(layer) for layer in range(45)]
    assert sigmas == sorted(sigmas)
    assert (sigmas[3], sigmas[7], sigmas[30], sigmas[44]) == pytest.approx((0.33, 0.9, 1.5, 1.5))


def test_a_token_picks_different_experts(full: RoutingTrace) -> None:
    for picks in (full.decode, full.prefill):
        assert int(picks.min()) >= 0
        assert int(picks.max()) < FULL.experts
        ordered = picks.sort(-1).values
        assert (ordered[..., 1:] != ordered[..., :-1]).all()


def test_streams_are_not_copies_of_each_other(full: RoutingTrace) -> None:
    assert float((full.decode[:, :, 0] == full.decode[:, :, 1]).float().mean()) < 0.2


def test_the_seed_decides_everything() -> None:
    one, same = RoutingTrace(SMALL, CPU), RoutingTrace(SMALL, CPU)
    other = RoutingTrace(TraceSpec(layers=3, experts=16, picks=4, steps=6, streams=2, prefill_rows=10, seed=1), CPU)  # fmt: skip
    assert torch.equal(one.decode, same.decode)
    assert torch.equal(one.prefill, same.prefill)
    assert not torch.equal(one.decode, other.decode)


def routed(trace: RoutingTrace, layer: int, rows: int) -> torch.Tensor:
    return trace(layer, torch.full((rows, SMALL.picks), -1))


def test_steps_advance_with_layer_0_and_start_again() -> None:
    trace = RoutingTrace(SMALL, CPU)
    for step in (*range(SMALL.steps), 0, 1):
        for layer in range(SMALL.layers):
            assert torch.equal(routed(trace, layer, 2), trace.decode[step, layer])
    trace.restart()
    assert torch.equal(routed(trace, 0, 1), trace.decode[0, 0, :1])


def test_a_prompt_takes_prefill_rows_over_and_over_and_no_step() -> None:
    trace = RoutingTrace(SMALL, CPU)
    given = torch.full((25, SMALL.picks), -1)
    found = trace(1, given)
    assert found is given
    assert torch.equal(found[:10], trace.prefill[1])
    assert torch.equal(found[10:20], trace.prefill[1])
    assert torch.equal(found[20:], trace.prefill[1, :5])
    assert torch.equal(routed(trace, 0, 1), trace.decode[0, 0, :1])


@pytest.mark.parametrize("rows", [1, 2])
def test_a_step_lies_in_the_same_memory_every_time(rows: int) -> None:
    trace = RoutingTrace(SMALL, CPU)
    layers = range(SMALL.layers)
    ahead = [trace.guesses_for(layer, rows) for layer in layers]
    first = [routed(trace, layer, rows) for layer in layers]
    routed(trace, 0, 3 - rows)  # another number of rows: its own memory, and the next step
    for step in (2, 3):
        for layer in layers:
            picks, guesses = routed(trace, layer, rows), trace.guesses_for(layer, rows)
            assert torch.equal(picks, trace.decode[step, layer, :rows])
            assert picks.is_contiguous()
            assert guesses.is_contiguous()
            assert picks.data_ptr() == first[layer].data_ptr()
            assert guesses.data_ptr() == ahead[layer].data_ptr()
    everything = {part.data_ptr() for part in (*first, *ahead)}
    assert len(everything) == 2 * SMALL.layers


def test_the_router_s_picks_of_a_step_are_left_as_they_are() -> None:
    trace = RoutingTrace(SMALL, CPU)
    picks = torch.full((1, SMALL.picks), -1)
    trace(0, picks)
    assert (picks == -1).all()


def test_guesses_are_of_this_step_and_come_best_first_of_all_streams(full: RoutingTrace) -> None:
    full.restart()
    right = 0
    for step in range(20):
        full(0, torch.zeros(2, FULL.picks, dtype=torch.int64))
        for layer in range(FULL.layers):
            guesses = full.guesses_for(layer, 2)
            assert guesses.shape == (2 * FULL.picks,)
            by_stream = guesses.view(FULL.picks, 2).T
            right += int((by_stream == full.decode[step, layer]).sum())
    share = right / (20 * FULL.layers * 2 * FULL.picks)
    assert share == pytest.approx(GUESS_RECALL, abs=0.03)


def test_rows_beyond_the_streams_get_the_guess_of_all_streams() -> None:
    trace = RoutingTrace(SMALL, CPU)
    routed(trace, 0, SMALL.streams)
    wanted = trace.guesses_for(1, SMALL.streams)
    assert trace.guesses_for(1, SMALL.streams + 3) is wanted
    assert wanted.shape == (SMALL.streams * SMALL.picks,)
