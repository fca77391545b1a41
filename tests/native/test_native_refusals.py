"""Whatever is wrong is refused with a typed error that names it, and nothing is written."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import exl3_oracle as oracle
import numpy as np
import pytest
from native_cases import Choice, bound, table_of

from glm53_kernels import BadArgument, CpuKernels, Expert, ExpertTable, Linear, Picks, _abi, sources
from glm53_kernels._load import load


@pytest.fixture
def linear():
    return bound(oracle.random_linear(np.random.default_rng(0), 128, 256, 3))


@pytest.fixture
def weight():
    return np.zeros((256, 128), np.float32)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"in_features": 100}, "trellis: number of elements"),
        ({"bits": 4}, "trellis: number of elements"),
        ({"trellis": np.zeros((8, 16, 48), np.int32)}, "trellis: dtype"),
        ({"trellis": np.zeros((8, 16, 96), np.int16)[..., ::2]}, "trellis is not contiguous"),
        ({"suh": np.zeros(256, np.float16)}, "suh: number of elements is 256, expected 128"),
        ({"svh": np.zeros(256, np.float32)}, "svh: dtype"),
        ({"trellis": "text"}, "trellis is a str"),
        ({"trellis": 0}, "trellis is null"),
        ({"suh": 0}, "suh is null"),
        ({"svh": 0}, "svh is null"),
        ({"trellis": 4097}, "not aligned to 2 bytes"),
        ({"suh": 4097}, "suh .* not aligned"),
        ({"in_features": 0, "trellis": 2, "suh": 2}, "in_features is 0"),
        ({"out_features": 64, "trellis": 2, "svh": 2}, "out_features is 64"),
        ({"in_features": 1 << 21, "trellis": 2, "suh": 2}, "in_features is 2097152"),
        ({"bits": 0, "trellis": 2}, "bits is 0"),
        ({"bits": 9, "trellis": 2}, "bits is 9"),
    ],
)
def test_a_wrong_linear_is_refused(open_kernels, linear, change, reason):
    wrong = dataclasses.replace(linear, **change)
    out = np.zeros(max(0, wrong.in_features * wrong.out_features), np.float32)
    with pytest.raises(BadArgument, match=reason):
        open_kernels().linear_dequant(wrong, out)
    assert not out.any()


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        (np.zeros((128, 128), np.float32), "out: number of elements"),
        (np.zeros((256, 128), np.float64), "out: dtype"),
        (np.zeros((128, 256), np.float32).T, "out is not contiguous"),
        (np.broadcast_to(np.float32(0), (256, 128)), "out is not contiguous"),
        (0, "out is null"),
        (4098, "out .* not aligned to 4 bytes"),
    ],
)
def test_a_wrong_output_is_refused(open_kernels, linear, out, reason):
    with pytest.raises(BadArgument, match=reason):
        open_kernels().linear_dequant(linear, out)


def test_a_read_only_output_is_refused(open_kernels, linear, weight):
    weight.flags.writeable = False
    with pytest.raises(BadArgument, match="out is read-only"):
        open_kernels().linear_dequant(linear, weight)


@pytest.mark.parametrize("rows", [-1, 3, 2**40])
def test_wrong_rows_are_refused(open_kernels, linear, rows):
    x, out = np.zeros((2, 128), np.float32), np.zeros((2, 256), np.float32)
    with pytest.raises(BadArgument, match=r"rows is|x: number of elements"):
        open_kernels().linear_forward(linear, x, out, rows=rows)


@pytest.mark.parametrize(
    ("pick", "reason"),
    [
        ((3, 0), "pick 1 names expert 3 of 3"),
        ((-1, 0), "pick 1 names expert -1 of 3"),
        ((0, 2), "pick 1 names row 2 of 2"),
        ((0, -5), "pick 1 names row -5 of 2"),
        ((2, 0), "gate trellis is null"),
    ],
)
def test_a_wrong_pick_is_refused_before_anything_is_written(open_kernels, pick, reason):
    rng = np.random.default_rng(0)
    experts = [oracle.random_expert(rng, 128, 128, (3, 3, 3)) for _ in range(2)]
    table = table_of([*experts, None])
    out = np.zeros((2, 128), np.float32)
    choice = Choice.of((0, 0, 1.0), (*pick, 1.0))
    with pytest.raises(BadArgument, match=reason):
        open_kernels().expert_forward(table, np.ones_like(out), out, rows=2, picks=choice.picks)
    assert not out.any()


def test_wrong_buffers_of_an_expert_call_are_refused(open_kernels):
    table = table_of([oracle.random_expert(np.random.default_rng(0), 128, 128, (3, 3, 3))])
    kernels = open_kernels()
    both = np.zeros((4, 128), np.float32)
    picks = Choice.of((0, 0, 1.0)).picks

    def call(x=both[:2], out=both[2:], picks=picks):
        kernels.expert_forward(table, x, out, rows=2, picks=picks)

    call()
    for arguments, reason in [
        ({"out": both[1:3]}, "x and out overlap"),
        ({"x": 0}, "x is null"),
        ({"out": 4097}, "out .* not aligned"),
        ({"x": both}, "x: number of elements"),
        ({"picks": dataclasses.replace(picks, count=2)}, "picks.expert: number of elements"),
        ({"picks": dataclasses.replace(picks, row=np.zeros(1, np.int64))}, "picks.row: dtype"),
        ({"picks": Picks(1, 0, 4, 4)}, "pick_expert is null"),
        ({"picks": Picks(-1, 4, 4, 4)}, "picks is -1"),
    ]:
        with pytest.raises(BadArgument, match=reason):
            call(**arguments)


@pytest.mark.parametrize("limit", [-1.0, np.nan, np.inf])
def test_a_senseless_clamp_is_refused(open_kernels, limit):
    table = table_of(
        [oracle.random_expert(np.random.default_rng(0), 128, 128, (3, 3, 3))], act_limit=limit
    )
    x = np.zeros((1, 128), np.float32)
    with pytest.raises(BadArgument, match="act_limit"):
        open_kernels().expert_forward(
            table, x, x.copy(), rows=1, picks=Choice.of((0, 0, 1.0)).picks
        )


def test_experts_of_different_shapes_share_no_table():
    rng = np.random.default_rng(0)
    first = oracle.random_expert(rng, 128, 256, (3, 3, 3))
    for other in (
        oracle.random_expert(rng, 128, 128, (3, 3, 3)),
        oracle.random_expert(rng, 128, 256, (3, 3, 4)),
    ):
        with pytest.raises(BadArgument, match="expert 1: "):
            table_of([first, other])
    with pytest.raises(BadArgument, match="at least one"):
        ExpertTable([None])
    swapped = Expert(bound(first.gate), bound(first.up), bound(first.up))
    with pytest.raises(BadArgument, match="expert 0: down"):
        ExpertTable([swapped])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"threads": 0}, "threads is 0"),
        ({"threads": -1}, "threads is -1"),
        ({"threads": 5000}, "threads is 5000"),
        ({"threads": 3, "cpus": [0, 0]}, "2 cpus for 3 threads"),
        ({"cpus": [0, 100000]}, "cpu 100000 does not exist"),
        ({"cpus": [0, 1023]}, "cpu 1023 is not available"),
        ({"isa": "neon"}, "isa is 'neon'"),
        ({"precision": "half"}, "precision is 'half'"),
    ],
)
def test_a_wrong_pool_is_refused(library, arguments, reason):
    before = len(list(Path("/proc/self/task").iterdir()))
    with pytest.raises(BadArgument, match=reason):
        CpuKernels(library=library, **arguments)
    assert len(list(Path("/proc/self/task").iterdir())) == before


def test_closed_kernels_refuse(open_kernels, linear, weight):
    kernels = open_kernels(threads=2)
    kernels.close()
    kernels.close()
    with pytest.raises(BadArgument, match="closed"):
        kernels.linear_dequant(linear, weight)


@pytest.mark.parametrize("cpu", [2**32, 2**31, -1, 2**64 + 1])
def test_a_cpu_number_does_not_wrap_around(open_kernels, cpu):
    with pytest.raises(BadArgument, match=rf"cpus\[0\] is {cpu}"):
        open_kernels(cpus=[cpu])


def test_closing_waits_for_the_calls_of_other_threads(open_kernels):
    linear = bound(oracle.random_linear(np.random.default_rng(0), 1024, 1024, 3))
    x = np.zeros((16, 1024), np.float32)

    def call_until_closed(kernels: CpuKernels) -> str:
        out = np.zeros((16, 1024), np.float32)
        try:
            while True:
                kernels.linear_forward(linear, x, out, rows=16)
        except BadArgument as err:
            return str(err)

    with ThreadPoolExecutor(3) as callers:
        for _ in range(20):
            kernels = open_kernels(threads=2)
            calls = [callers.submit(call_until_closed, kernels) for _ in range(3)]
            time.sleep(0.005)
            kernels.close()
            assert {call.result(30) for call in calls} == {"these kernels are closed"}


def test_a_struct_of_another_size_is_refused(library):
    """What a caller with an older or newer header would pass."""
    native = load(sources.CPU, library)
    args = _abi.CpuOpenArgs(size=ctypes.sizeof(_abi.CpuOpenArgs) - 8, threads=1)
    handle = ctypes.c_void_p()
    with pytest.raises(BadArgument, match="open args has size"):
        native.call("glm53_cpu_open", ctypes.byref(args), ctypes.byref(handle))
    with pytest.raises(BadArgument, match="open args is null"):
        native.call("glm53_cpu_open", None, ctypes.byref(handle))
    with pytest.raises(BadArgument, match="handle is null"):
        native.call("glm53_cpu_linear_dequant", None, None)
    assert handle.value is None


def test_torch_tensors_are_checked_like_arrays(open_kernels):
    if "NATIVE_LIBRARY" in os.environ:
        pytest.skip("torch is not run under a sanitizer")
    import torch

    made = oracle.random_linear(np.random.default_rng(0), 128, 128, 3)
    tensors = [torch.from_numpy(part.copy()) for part in made]
    out = torch.empty(128, 128)
    kernels = open_kernels()
    kernels.linear_dequant(Linear(128, 128, 3, *tensors), out)
    np.testing.assert_allclose(out.numpy(), oracle.linear_dequant(made), atol=1e-6)
    for wrong, reason in [(out.double(), "dtype"), (out.T, "contiguous"), (out[:64], "elements")]:
        with pytest.raises(BadArgument, match=reason):
            kernels.linear_dequant(Linear(128, 128, 3, *tensors), wrong)
