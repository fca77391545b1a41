"""Decoding, dequantisation and whole linears against the float64 oracle."""

from __future__ import annotations

import functools
from pathlib import Path

import exl3_oracle as oracle
import numpy as np
import pytest
from native_cases import ISAS, PRECISIONS, dequant, forward, relative_rms

TINY = Path(__file__).resolve().parents[2] / "reference/tiny/model.safetensors"
SIZES = ((128, 128), (384, 640), (896, 256), (2176, 128))


@functools.cache
def case(bits: int, in_features: int, out_features: int) -> tuple[oracle.Linear, np.ndarray]:
    """A random linear and its weight by the oracle, which is slow: made once for all kernels."""
    rng = np.random.default_rng([bits, in_features, out_features])
    linear = oracle.random_linear(rng, in_features, out_features, bits)
    return linear, oracle.linear_dequant(linear)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("isa", ISAS)
def test_every_decoded_value_is_the_codebooks(open_kernels, isa, bits):
    linear, _ = case(bits, 384, 640)
    scales = linear.suh.astype(np.float64) * linear.svh.astype(np.float64)[:, None]
    weight = dequant(open_kernels(isa=isa, threads=2), linear).astype(np.float64)
    # Undo both rotations: what is left differs from fp16 values only by float32 rounding of the transforms.
    decoded = oracle.hadamard(oracle.hadamard(weight / scales).T)
    values = oracle.decode(linear.trellis)
    assert np.abs(decoded - values).max() < 1e-5
    assert (decoded.astype(np.float16) == values).mean() > 0.9999


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("isa", ISAS)
def test_the_exact_product_uses_the_codebooks_values_too(open_kernels, isa, bits):
    linear, weight = case(bits, 128, 128)
    rows = forward(open_kernels(isa=isa), linear, np.eye(128, dtype=np.float32))
    assert relative_rms(rows.T, weight) < 1e-6


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("isa", ISAS)
def test_a_linear_of_any_size_agrees_with_float64(open_kernels, isa, precision, bits):
    kernels = open_kernels(isa=isa, precision=precision, threads=2)
    for in_features, out_features in SIZES:
        linear, weight = case(bits, in_features, out_features)
        for rows in (1, 3, 35):
            x = np.random.default_rng(rows).normal(size=(rows, in_features)).astype(np.float32)
            limit = 1e-6 if precision == "exact" else 5e-4
            assert relative_rms(forward(kernels, linear, x), x @ weight.T) < limit


def test_byte_sums_reach_every_value_and_its_tie():
    """The oracle's own codebook against integer arithmetic, for all 65536 states."""
    states = np.arange(65536, dtype=np.uint32)
    product = (states.astype(np.uint64) * oracle.MUL1) & 0xFFFFFFFF
    sums = sum((product >> shift) & 0xFF for shift in (0, 8, 16, 24)).astype(np.int64)
    exact = (1774 * sums - 905216) / 2**18
    assert (oracle.codebook(states) == exact.astype(np.float16)).all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("isa", ISAS)
def test_inputs_of_any_scale(open_kernels, isa, precision):
    kernels = open_kernels(isa=isa, precision=precision)
    rng = np.random.default_rng(0)
    linear = oracle.random_linear(rng, 256, 128, 3)
    for scale in (0.0, 1e-20, 1e4, 1e20):
        x = (rng.normal(size=(2, 256)) * scale).astype(np.float32)
        x[1] = 0
        want = oracle.linear_forward(linear, x.astype(np.float64))
        got = forward(kernels, linear, x)
        assert (got[1] == 0).all()
        if scale:
            assert relative_rms(got, want) < 5e-4


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("isa", ISAS)
def test_a_bad_number_stays_visible(open_kernels, isa, precision, bad):
    linear = oracle.random_linear(np.random.default_rng(0), 256, 128, 3)
    x = np.ones((2, 256), np.float32)
    x[0, 200] = bad
    got = forward(open_kernels(isa=isa, precision=precision), linear, x)
    assert not np.isfinite(got[0]).any()
    assert np.isfinite(got[1]).all()


@pytest.mark.parametrize("isa", ISAS)
def test_real_tensors(open_kernels, isa):
    kernels = open_kernels(isa=isa, threads=2)
    linears = oracle.read_linears(TINY)
    dense = [name for name in linears if ".experts." not in name]
    expert = [name for name in linears if ".layers.2.mlp.experts.7." in name]
    names = [*dense[1:5], "lm_head", *expert]
    assert len(names) == 8
    for name in names:
        want = oracle.linear_dequant(linears[name])
        assert relative_rms(dequant(kernels, linears[name]), want) < 1e-6, name


@pytest.mark.parametrize("isa", ISAS)
def test_the_thread_count_changes_no_bit(open_kernels, isa):
    rng = np.random.default_rng(5)
    linear = oracle.random_linear(rng, 256, 896, 4)
    x = rng.normal(size=(3, 256)).astype(np.float32)
    results = [
        (dequant(kernels, linear), forward(kernels, linear, x))
        for kernels in (open_kernels(isa=isa, threads=n) for n in (1, 2, 3))
    ]
    for weight, product in results[1:]:
        assert (weight == results[0][0]).all()
        assert (product == results[0][1]).all()
