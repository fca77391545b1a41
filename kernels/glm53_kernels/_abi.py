"""Mirror of kernels/csrc/abi.h, written by scripts/gen_abi.py. Do not edit."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

ABI_VERSION = 3

OK = 0
BAD_ARGUMENT = 1
UNSUPPORTED = 2
OUT_OF_MEMORY = 3
INTERNAL = 4

ISA_AUTO = 0
ISA_SCALAR = 1
ISA_AVX2 = 2
ISA_AVX512 = 3

PRECISION_EXACT = 0
PRECISION_FAST = 1


class Linear(ctypes.Structure):
    _fields_: ClassVar = [
        ("size", ctypes.c_uint32),
        ("bits", ctypes.c_uint32),
        ("in_features", ctypes.c_uint32),
        ("out_features", ctypes.c_uint32),
        ("trellis_bytes", ctypes.c_uint64),
        ("trellis", ctypes.c_void_p),
        ("suh", ctypes.c_void_p),
        ("svh", ctypes.c_void_p),
    ]


class Expert(ctypes.Structure):
    _fields_: ClassVar = [
        ("gate_trellis", ctypes.c_void_p),
        ("gate_suh", ctypes.c_void_p),
        ("gate_svh", ctypes.c_void_p),
        ("up_trellis", ctypes.c_void_p),
        ("up_suh", ctypes.c_void_p),
        ("up_svh", ctypes.c_void_p),
        ("down_trellis", ctypes.c_void_p),
        ("down_suh", ctypes.c_void_p),
        ("down_svh", ctypes.c_void_p),
    ]


class CpuOpenArgs(ctypes.Structure):
    _fields_: ClassVar = [
        ("size", ctypes.c_uint32),
        ("isa", ctypes.c_uint32),
        ("precision", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("cpus_count", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("cpus", ctypes.c_void_p),
    ]


class CpuInfo(ctypes.Structure):
    _fields_: ClassVar = [
        ("size", ctypes.c_uint32),
        ("isa", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("best_isa", ctypes.c_uint32),
    ]


class CpuLinearDequantArgs(ctypes.Structure):
    _fields_: ClassVar = [
        ("size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("linear", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_bytes", ctypes.c_uint64),
    ]


class CpuLinearForwardArgs(ctypes.Structure):
    _fields_: ClassVar = [
        ("size", ctypes.c_uint32),
        ("rows", ctypes.c_uint32),
        ("linear", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
    ]


class CpuExpertForwardArgs(ctypes.Structure):
    _fields_: ClassVar = [
        ("size", ctypes.c_uint32),
        ("hidden", ctypes.c_uint32),
        ("intermediate", ctypes.c_uint32),
        ("gate_bits", ctypes.c_uint32),
        ("up_bits", ctypes.c_uint32),
        ("down_bits", ctypes.c_uint32),
        ("experts", ctypes.c_uint32),
        ("rows", ctypes.c_uint32),
        ("picks", ctypes.c_uint32),
        ("act_limit", ctypes.c_float),
        ("table", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("pick_expert", ctypes.c_void_p),
        ("pick_row", ctypes.c_void_p),
        ("pick_weight", ctypes.c_void_p),
    ]


class CpuTierArgs(ctypes.Structure):
    _fields_: ClassVar = [
        ("size", ctypes.c_uint32),
        ("layers", ctypes.c_uint32),
        ("experts", ctypes.c_uint32),
        ("hidden", ctypes.c_uint32),
        ("intermediate", ctypes.c_uint32),
        ("gate_bits", ctypes.c_uint32),
        ("up_bits", ctypes.c_uint32),
        ("down_bits", ctypes.c_uint32),
        ("act_limit", ctypes.c_float),
        ("watchdog_ms", ctypes.c_uint32),
        ("tables", ctypes.c_void_p),
        ("mailbox", ctypes.c_void_p),
    ]


class CpuTierCounters(ctypes.Structure):
    _fields_: ClassVar = [
        ("size", ctypes.c_uint32),
        ("aborted", ctypes.c_uint32),
        ("jobs", ctypes.c_uint64),
        ("experts", ctypes.c_uint64),
        ("picks", ctypes.c_uint64),
        ("busy_ns", ctypes.c_uint64),
        ("max_busy_ns", ctypes.c_uint64),
        ("timeouts", ctypes.c_uint64),
    ]


class CacheStepArgs(ctypes.Structure):
    _fields_: ClassVar = [
        ("size", ctypes.c_uint32),
        ("num_picks", ctypes.c_int32),
        ("layer", ctypes.c_int32),
        ("experts", ctypes.c_int32),
        ("slots", ctypes.c_int32),
        ("admit_limit", ctypes.c_int32),
        ("gpu_share", ctypes.c_float),
        ("dither", ctypes.c_float),
        ("now", ctypes.c_uint32),
        ("lookahead", ctypes.c_uint32),
        ("measured", ctypes.c_int32),
        ("reserved", ctypes.c_uint32),
        ("picks", ctypes.c_void_p),
        ("resident", ctypes.c_void_p),
        ("owner", ctypes.c_void_p),
        ("heat", ctypes.c_void_p),
        ("last", ctypes.c_void_p),
        ("busy", ctypes.c_void_p),
        ("hand", ctypes.c_void_p),
        ("admissions", ctypes.c_void_p),
        ("result", ctypes.c_void_p),
    ]


class Piece(ctypes.Structure):
    _fields_: ClassVar = [
        ("to", ctypes.c_void_p),
        ("from", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("file", ctypes.c_int32),
        ("reserved", ctypes.c_uint32),
    ]


STRUCTS: dict[str, type[ctypes.Structure]] = {
    "glm53_linear": Linear,
    "glm53_expert": Expert,
    "glm53_cpu_open_args": CpuOpenArgs,
    "glm53_cpu_info": CpuInfo,
    "glm53_cpu_linear_dequant_args": CpuLinearDequantArgs,
    "glm53_cpu_linear_forward_args": CpuLinearForwardArgs,
    "glm53_cpu_expert_forward_args": CpuExpertForwardArgs,
    "glm53_cpu_tier_args": CpuTierArgs,
    "glm53_cpu_tier_counters": CpuTierCounters,
    "glm53_cache_step_args": CacheStepArgs,
    "glm53_piece": Piece,
}

FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "glm53_abi_version": (
        ctypes.c_uint32,
        [],
    ),
    "glm53_struct_size": (
        ctypes.c_uint32,
        [ctypes.c_char_p],
    ),
    "glm53_build_id": (
        ctypes.c_char_p,
        [],
    ),
    "glm53_last_error": (
        ctypes.c_char_p,
        [],
    ),
    "glm53_cpu_open": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_void_p],
    ),
    "glm53_cpu_close": (
        ctypes.c_int,
        [ctypes.c_void_p],
    ),
    "glm53_cpu_lose_worker": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_uint32],
    ),
    "glm53_cpu_describe": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_void_p],
    ),
    "glm53_cpu_linear_dequant": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_void_p],
    ),
    "glm53_cpu_linear_forward": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_void_p],
    ),
    "glm53_cpu_expert_forward": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_void_p],
    ),
    "glm53_cpu_tier_mailbox_bytes": (
        ctypes.c_int,
        [ctypes.c_uint32, ctypes.c_void_p],
    ),
    "glm53_cpu_tier_open": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p],
    ),
    "glm53_cpu_tier_close": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_void_p],
    ),
    "glm53_cpu_tier_stats": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_void_p],
    ),
    "glm53_cpu_tier_reset": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_void_p],
    ),
    "glm53_cpu_cache_step": (
        ctypes.c_int,
        [ctypes.c_void_p],
    ),
    "glm53_cpu_fill": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p],
    ),
}
