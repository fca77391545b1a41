"""expert_forward against the float64 oracle: picks, clamps, sharing, threads."""

from __future__ import annotations

import functools
from pathlib import Path

import exl3_oracle as oracle
import numpy as np
import pytest
from native_cases import ISAS, PRECISIONS, Choice, relative_rms, table_of

TINY = Path(__file__).resolve().parents[2] / "reference/tiny/model.safetensors"
BITS = ((1, 2, 3), (3, 3, 3), (4, 5, 6), (6, 7, 8), (8, 1, 4))


def run(kernels, table, x, choice):
    out = np.zeros_like(x)
    kernels.expert_forward(table, x, out, rows=len(x), picks=choice.picks)
    return out


@functools.cache
def three_experts(bits):
    """Three experts, inputs, picks and what the oracle makes of them."""
    rng = np.random.default_rng(sum(bits))
    experts = [oracle.random_expert(rng, 384, 640, bits) for _ in range(3)]
    x = rng.normal(size=(4, 384)).astype(np.float32)
    choice = Choice.of((2, 0, 0.5), (0, 1, 0.25), (2, 3, 1.0), (1, 0, 0.125), (2, 1, -0.7))
    return experts, x, choice, choice.expected(experts, x, 0.0)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("isa", ISAS)
def test_picks_agree_with_float64(open_kernels, isa, precision, bits):
    experts, x, choice, want = three_experts(bits)
    got = run(open_kernels(isa=isa, precision=precision, threads=2), table_of(experts), x, choice)
    assert relative_rms(got, want) < (2e-6 if precision == "exact" else 5e-4)
    assert (got[2] == 0).all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("isa", ISAS)
def test_values_beyond_the_clamp(open_kernels, isa, precision):
    rng = np.random.default_rng(11)
    experts = [oracle.random_expert(rng, 256, 384, (3, 3, 3))]
    x = (12 * rng.normal(size=(5, 256))).astype(np.float32)
    gate = oracle.linear_forward(experts[0].gate, x.astype(np.float64))
    up = oracle.linear_forward(experts[0].up, x.astype(np.float64))
    assert (gate > 10).mean() > 0.1
    assert (up > 10).mean() > 0.1
    assert (up < -10).mean() > 0.1
    choice = Choice.of(*((0, row, 1.0) for row in range(5)))
    kernels = open_kernels(isa=isa, precision=precision)
    clamped = run(kernels, table_of(experts, act_limit=10.0), x, choice)
    free = run(kernels, table_of(experts), x, choice)
    assert relative_rms(clamped, choice.expected(experts, x, 10.0)) < 5e-4
    assert relative_rms(free, choice.expected(experts, x, 0.0)) < 5e-4
    assert relative_rms(clamped, free) > 0.1


@pytest.mark.parametrize("isa", ISAS)
def test_gates_from_deeply_negative_to_huge(open_kernels, isa):
    """silu is right where its exponential under- and overflows."""
    rng = np.random.default_rng(12)
    experts = [oracle.random_expert(rng, 128, 128, (3, 3, 3))]
    x = np.concatenate([rng.normal(size=(1, 128)) * scale for scale in (1e-6, 1, 30, 300)]).astype(
        np.float32
    )
    choice = Choice.of(*((0, row, 1.0) for row in range(len(x))))
    got = run(open_kernels(isa=isa), table_of(experts), x, choice)
    want = choice.expected(experts, x, 0.0)
    for row in range(len(x)):
        assert relative_rms(got[row], want[row]) < 5e-6


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("isa", ISAS)
def test_one_expert_for_many_rows_equals_row_by_row(open_kernels, isa, precision):
    rng = np.random.default_rng(2)
    experts = [oracle.random_expert(rng, 128, 256, (3, 3, 3))]
    kernels = open_kernels(isa=isa, precision=precision, threads=2)
    table = table_of(experts, act_limit=10.0)
    x = rng.normal(size=(70, 128)).astype(np.float32)
    together = run(kernels, table, x, Choice.of(*((0, row, 0.5) for row in range(70))))
    alone = np.concatenate(
        [run(kernels, table, x[r : r + 1].copy(), Choice.of((0, 0, 0.5))) for r in range(70)]
    )
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("hidden", "intermediate"), [(2176, 128), (128, 2176)])
@pytest.mark.parametrize("isa", ISAS)
def test_long_inputs_are_cut_and_joined(open_kernels, isa, hidden, intermediate):
    rng = np.random.default_rng(8)
    experts = [oracle.random_expert(rng, hidden, intermediate, (3, 3, 3))]
    x = rng.normal(size=(2, hidden)).astype(np.float32)
    choice = Choice.of((0, 0, 0.5), (0, 1, 0.25))
    table = table_of(experts, act_limit=10.0)
    one, three = (run(open_kernels(isa=isa, threads=n), table, x, choice) for n in (1, 3))
    assert relative_rms(one, choice.expected(experts, x, 10.0)) < 5e-6
    assert (one == three).all()


def test_more_picks_than_one_batch_holds(open_kernels):
    rng = np.random.default_rng(3)
    experts = [oracle.random_expert(rng, 128, 128, (3, 3, 3)) for _ in range(2)]
    x = rng.normal(size=(400, 128)).astype(np.float32)
    choice = Choice.of(*((e, row, 0.5) for row in range(400) for e in (1, 0)))
    want = 0.5 * sum(oracle.expert_forward(e, x.astype(np.float64), 10.0) for e in experts)
    got = run(open_kernels(threads=2), table_of(experts, act_limit=10.0), x, choice)
    assert relative_rms(got, want) < 2e-6


@pytest.mark.parametrize("isa", ISAS)
def test_the_same_pick_twice_counts_twice_and_out_is_added_to(open_kernels, isa):
    rng = np.random.default_rng(4)
    experts = [oracle.random_expert(rng, 128, 128, (3, 3, 3))]
    x = rng.normal(size=(1, 128)).astype(np.float32)
    out = np.full_like(x, 7.0)
    choice = Choice.of((0, 0, 0.5), (0, 0, 0.25))
    open_kernels(isa=isa).expert_forward(table_of(experts), x, out, rows=1, picks=choice.picks)
    assert relative_rms(out - 7.0, choice.expected(experts, x, 0.0)) < 5e-6


@pytest.mark.parametrize("rows", [0, 2])
def test_no_picks_change_nothing(open_kernels, rows):
    table = table_of([oracle.random_expert(np.random.default_rng(0), 128, 128, (3, 3, 3))])
    out = np.full((rows, 128), 3.0, np.float32)
    open_kernels().expert_forward(table, np.ones_like(out), out, rows=rows, picks=Choice.of().picks)
    assert (out == 3.0).all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("isa", ISAS)
def test_thread_counts_and_repeats_agree_bit_for_bit(open_kernels, isa, precision):
    rng = np.random.default_rng(6)
    experts = [oracle.random_expert(rng, 256, 384, (3, 3, 3)) for _ in range(4)]
    table = table_of(experts, act_limit=10.0)
    x = rng.normal(size=(3, 256)).astype(np.float32)
    choice = Choice.of(
        (0, 0, 0.5), (1, 0, 0.5), (3, 1, 0.5), (1, 2, 0.5), (2, 2, 0.25), (0, 2, 0.25)
    )
    first = run(open_kernels(isa=isa, precision=precision, threads=1), table, x, choice)
    for threads in (2, 3):
        kernels = open_kernels(isa=isa, precision=precision, threads=threads)
        for _ in range(20):
            assert (run(kernels, table, x, choice) == first).all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("isa", ISAS)
def test_real_experts(open_kernels, isa, precision):
    linears = oracle.read_linears(TINY)
    name = "model.language_model.layers.3.mlp.experts.{}.{}_proj"
    experts = [
        oracle.Expert(*(linears[name.format(e, part)] for part in ("gate", "up", "down")))
        for e in range(4)
    ]
    x = np.random.default_rng(1).normal(size=(2, 256)).astype(np.float32)
    choice = Choice.of((0, 0, 0.6), (3, 0, 0.4), (3, 1, 0.9), (1, 1, 0.1))
    got = run(
        open_kernels(isa=isa, precision=precision), table_of(experts, act_limit=10.0), x, choice
    )
    want = choice.expected(experts, x, 10.0)
    assert relative_rms(got, want) < (2e-6 if precision == "exact" else 5e-4)
