"""Bindings of the native libraries: EXL3 weights and expert arithmetic, without torch or numpy.

Importing this package loads no library; making a CpuKernels does.

    kernels = CpuKernels(threads=8)
    kernels.linear_dequant(Linear(in_features, out_features, bits, trellis, suh, svh), out)
    kernels.expert_forward(table, x, out, rows=rows, picks=Picks(n, expert, row, weight))
"""

from __future__ import annotations

from .buffers import Buffer
from .cpu import CpuKernels, Expert, ExpertTable, Isa, Linear, Picks, Precision
from .errors import (
    AbiMismatch,
    BadArgument,
    KernelBuildFailed,
    KernelError,
    LibraryMissing,
    NativeFailure,
    StaleLibrary,
    Unsupported,
)
from .fill import FileEnded, Filler, Piece
from .tier import CpuTier, TierShape, TierStats

__all__ = [
    "AbiMismatch",
    "BadArgument",
    "Buffer",
    "CpuKernels",
    "CpuTier",
    "Expert",
    "ExpertTable",
    "FileEnded",
    "Filler",
    "Isa",
    "KernelBuildFailed",
    "KernelError",
    "LibraryMissing",
    "Linear",
    "NativeFailure",
    "Picks",
    "Piece",
    "Precision",
    "StaleLibrary",
    "TierShape",
    "TierStats",
    "Unsupported",
]
