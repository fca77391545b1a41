"""The struct of the look-ahead's guess, field by field as in csrc/cuda/abi_cuda.h."""

from __future__ import annotations

import ctypes

MOST_GUESSED = 16  # kMostGuessed of csrc/cuda/guess.cu: experts named per guess, at most
MOST_GUESS_ROWS = 8


class RouterStruct(ctypes.Structure):
    """glm53_router: one layer's router, the scratch of a guess, and where its answer goes."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("experts", ctypes.c_int32),
        ("hidden", ctypes.c_int32),
        ("picks", ctypes.c_int32),
        ("gate", ctypes.c_uint64),
        ("gate_expert_stride", ctypes.c_int64),
        ("gate_input_stride", ctypes.c_int64),
        ("bias", ctypes.c_uint64),
        ("scores", ctypes.c_uint64),
        ("joined", ctypes.c_uint64),
        ("out", ctypes.c_uint64),
    )
