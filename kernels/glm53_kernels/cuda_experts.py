"""The structs of fast mode's own expert kernels, field by field as in csrc/cuda/abi_cuda.h."""

from __future__ import annotations

import ctypes

MOST_RUNS = 64  # kMostRuns of csrc/core/expert_runs.h: picks of one step, at most
RUN_ROWS = 8
RUN_LIST_BYTES = 4 * (2 + MOST_RUNS * (2 + RUN_ROWS) + MOST_RUNS)  # sizeof(RunList)
BLOCK = 128  # features are multiples of it
MOST_SLICES = 8  # kMostSlices of csrc/core/expert_runs.h


class ExpertsStruct(ctypes.Structure):
    """glm53_experts: the routed experts of one layer."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("hidden", ctypes.c_int32),
        ("intermediate", ctypes.c_int32),
        ("bits", ctypes.c_int32),
        ("down_bits", ctypes.c_int32),
        ("processors", ctypes.c_int32),
        ("act_limit", ctypes.c_float),
        ("gate_trellis", ctypes.c_uint64),
        ("gate_suh", ctypes.c_uint64),
        ("gate_svh", ctypes.c_uint64),
        ("up_trellis", ctypes.c_uint64),
        ("up_suh", ctypes.c_uint64),
        ("up_svh", ctypes.c_uint64),
        ("down_trellis", ctypes.c_uint64),
        ("down_suh", ctypes.c_uint64),
        ("down_svh", ctypes.c_uint64),
        ("act", ctypes.c_uint64),
        ("partial", ctypes.c_uint64),
        ("y", ctypes.c_uint64),
        ("joined", ctypes.c_uint64),
    )


class ForkStruct(ctypes.Structure):
    """glm53_fork: streams and events of a layer whose experts we compute."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("blocks", ctypes.c_int32),
        ("repeats", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("side", ctypes.c_void_p),
        ("copies", ctypes.c_void_p),
        ("routed", ctypes.c_void_p),
        ("decided", ctypes.c_void_p),
        ("forked", ctypes.c_void_p),
        ("copied", ctypes.c_void_p),
        ("computed", ctypes.c_void_p),
        ("began", ctypes.c_void_p),
        ("ended", ctypes.c_void_p),
        ("last", ctypes.c_void_p),
    )


class AheadStruct(ctypes.Structure):
    """glm53_ahead: stream and events of a look-ahead."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("rows", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
        ("routed", ctypes.c_void_p),
        ("copied", ctypes.c_void_p),
        ("decided", ctypes.c_void_p),
    )
