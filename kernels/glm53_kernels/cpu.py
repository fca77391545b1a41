"""EXL3 on the CPU: typed calls into libglm53_cpu.so.

Torch-free and numpy-free: a Buffer is a torch CPU tensor, a numpy array or an address. Calls release
the GIL, block until done and keep no pointer; calls on one CpuKernels are serialised. An ExpertTable
keeps the buffers it was given; memory behind plain addresses is the caller's to keep.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from . import _abi
from ._load import Library, load
from .buffers import Buffer, address, counted
from .errors import BadArgument
from .sources import CPU

_Struct = TypeVar("_Struct", bound=ctypes.Structure)
Isa = Literal["scalar", "avx2", "avx512"]
Precision = Literal["exact", "fast"]

_ISA_IDS: dict[str, int] = {
    "auto": _abi.ISA_AUTO,
    "scalar": _abi.ISA_SCALAR,
    "avx2": _abi.ISA_AVX2,
    "avx512": _abi.ISA_AVX512,
}
_PRECISION_IDS: dict[str, int] = {
    "exact": _abi.PRECISION_EXACT,
    "fast": _abi.PRECISION_FAST,
}
_ISA_NAMES: dict[int, Isa] = {
    _abi.ISA_SCALAR: "scalar",
    _abi.ISA_AVX2: "avx2",
    _abi.ISA_AVX512: "avx512",
}


@dataclass(frozen=True, slots=True)
class Linear:
    """One EXL3 linear with the mul1 codebook.

    trellis int16 [in/16, out/16, 16*bits], suh float16 [in], svh float16 [out]; in and out are multiples
    of 128, bits is 1..8.
    """

    in_features: int
    out_features: int
    bits: int
    trellis: Buffer
    suh: Buffer
    svh: Buffer

    @property
    def trellis_bytes(self) -> int:
        return self.in_features * self.out_features * self.bits // 8

    def addresses(self) -> tuple[int, int, int]:
        """Of trellis, suh and svh, each checked for dtype and size."""
        return (
            address(self.trellis, "trellis", "int16", self.trellis_bytes // 2),
            address(self.suh, "suh", "float16", self.in_features),
            address(self.svh, "svh", "float16", self.out_features),
        )


@dataclass(frozen=True, slots=True)
class Expert:
    """gate and up are hidden -> intermediate, down is intermediate -> hidden."""

    gate: Linear
    up: Linear
    down: Linear


class ExpertTable:
    """The addresses of one layer's experts. All experts share sizes and bits; None is an absent expert.

    act_limit 0 means no clamp; otherwise min(silu(gate), limit) * clamp(up, -limit, limit).
    Raises BadArgument when the experts disagree or none is there.
    """

    def __init__(self, experts: Sequence[Expert | None], *, act_limit: float = 0.0) -> None:
        present = [expert for expert in experts if expert is not None]
        if not present:
            raise BadArgument("an expert table needs at least one expert")
        self.hidden, self.intermediate = present[0].gate.in_features, present[0].gate.out_features
        self.bits = (present[0].gate.bits, present[0].up.bits, present[0].down.bits)
        self.act_limit = act_limit
        # The entries are addresses: the tensors they point into live as long as the table.
        self._experts = tuple(experts)
        self._entries = (_abi.Expert * len(experts))()
        for index, expert in enumerate(experts):
            if expert is not None:
                self._check(index, expert)
                linears = (expert.gate, expert.up, expert.down)
                self._entries[index] = _abi.Expert(
                    *(a for linear in linears for a in linear.addresses())
                )

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> ctypes.Array[_abi.Expert]:
        return self._entries

    def _check(self, index: int, expert: Expert) -> None:
        wide, narrow = self.hidden, self.intermediate
        gate_bits, up_bits, down_bits = self.bits
        wanted = ((wide, narrow, gate_bits), (wide, narrow, up_bits), (narrow, wide, down_bits))
        for name, linear, want in zip(
            ("gate", "up", "down"), (expert.gate, expert.up, expert.down), wanted, strict=True
        ):
            got = (linear.in_features, linear.out_features, linear.bits)
            if got != want:
                raise BadArgument(
                    f"expert {index}: {name} is (in, out, bits) {got}, the table needs {want}"
                )


class Closes(Protocol):
    """What shares a pool."""

    def close(self) -> object: ...


class CpuKernels:
    """The library with a persistent pool of `threads` threads, the calling one included.

    `cpus` pins worker i to cpus[i]; entry 0 stands for the calling thread, which is never pinned.
    `precision` "exact" uses the codebook's fp16 values bit for bit and float32 activations; "fast" may
    differ from it by about 2.1e-4 relative RMS per linear. linear_dequant is always exact.
    `isa` forces an instruction set, "auto" takes the best of this CPU.
    Raises LibraryMissing, StaleLibrary, AbiMismatch; BadArgument for a cpu that is not available;
    Unsupported for an isa this CPU lacks.
    """

    def __init__(
        self,
        *,
        threads: int | None = None,
        cpus: Sequence[int] = (),
        isa: Isa | Literal["auto"] = "auto",
        precision: Precision = "exact",
        library: Path | None = None,
    ) -> None:
        if isa not in _ISA_IDS:
            raise BadArgument(f"isa is {isa!r}, not one of {', '.join(_ISA_IDS)}")
        if precision not in _PRECISION_IDS:
            raise BadArgument(f"precision is {precision!r}, not exact or fast")
        count = counted("threads", threads if threads is not None else max(1, len(cpus)))
        numbers = (counted(f"cpus[{index}]", cpu) for index, cpu in enumerate(cpus))
        pinned = (ctypes.c_int32 * len(cpus))(*numbers)
        args = _sized(_abi.CpuOpenArgs(isa=_ISA_IDS[isa], threads=count, cpus_count=len(cpus)))
        args.precision = _PRECISION_IDS[precision]
        args.cpus = ctypes.addressof(pinned) if cpus else None
        self._library = load(CPU, library)
        self._calling = threading.Lock()
        self._users: weakref.WeakSet[Closes] = weakref.WeakSet()
        self._handle = ctypes.c_void_p()
        self._library.call("glm53_cpu_open", ctypes.byref(args), ctypes.byref(self._handle))
        self._closer = weakref.finalize(self, _close, self._library, self._handle)
        info = _sized(_abi.CpuInfo())
        self._library.call("glm53_cpu_describe", self._handle, ctypes.byref(info))
        self.isa: Isa = _ISA_NAMES[info.isa]
        self.best_isa: Isa = _ISA_NAMES[info.best_isa]
        self.precision: Precision = precision
        self.threads: int = info.threads
        self.build_id = self._library.build_id

    def close(self) -> None:
        """Stop the workers and free the scratch memory, after the calls that run. Twice is fine.

        What shares the pool is closed first.
        """
        for user in tuple(self._users):
            user.close()
        with self._calling:
            self._closer()

    def share(self, user: Closes) -> None:
        """Remember something that uses this pool, to close it before the pool."""
        self._users.add(user)

    def _call(self, name: str, args: ctypes.Structure) -> None:
        with self._calling:  # close() must not free what another thread computes with
            self._library.call(name, self.handle, ctypes.byref(args))

    def linear_dequant(self, linear: Linear, out: Buffer) -> None:
        """out float32 [out_features, in_features] = the weight of `linear` in torch Linear's layout."""
        count = linear.in_features * linear.out_features
        struct = _linear_struct(linear)
        args = _sized(_abi.CpuLinearDequantArgs(out_bytes=4 * count))
        args.linear = ctypes.addressof(struct)
        args.out = address(out, "out", "float32", count, write=True)
        self._call("glm53_cpu_linear_dequant", args)

    def linear_forward(self, linear: Linear, x: Buffer, out: Buffer, *, rows: int) -> None:
        """out float32 [rows, out_features] = linear(x float32 [rows, in_features]), from the trellis."""
        struct = _linear_struct(linear)
        args = _sized(_abi.CpuLinearForwardArgs(rows=counted("rows", rows)))
        args.linear = ctypes.addressof(struct)
        args.x = address(x, "x", "float32", rows * linear.in_features)
        args.out = address(out, "out", "float32", rows * linear.out_features, write=True)
        self._call("glm53_cpu_linear_forward", args)

    def expert_forward(
        self, table: ExpertTable, x: Buffer, out: Buffer, *, rows: int, picks: Picks
    ) -> None:
        """out float32 [rows, hidden] += sum over picks of weight * expert(x[row]).

        x float32 [rows, hidden], not overlapping out. Raises BadArgument for an expert or row that is
        not there, before anything is written.
        """
        gate_bits, up_bits, down_bits = table.bits
        args = _sized(
            _abi.CpuExpertForwardArgs(
                hidden=table.hidden,
                intermediate=table.intermediate,
                gate_bits=gate_bits,
                up_bits=up_bits,
                down_bits=down_bits,
                experts=len(table),
                rows=counted("rows", rows),
                picks=counted("picks", picks.count),
                act_limit=table.act_limit,
            )
        )
        args.table = ctypes.addressof(table.entries)
        args.x = address(x, "x", "float32", rows * table.hidden)
        args.out = address(out, "out", "float32", rows * table.hidden, write=True)
        args.pick_expert = address(picks.expert, "picks.expert", "int32", picks.count)
        args.pick_row = address(picks.row, "picks.row", "int32", picks.count)
        args.pick_weight = address(picks.weight, "picks.weight", "float32", picks.count)
        self._call("glm53_cpu_expert_forward", args)

    def lose_worker(self, *, in_job: bool) -> None:
        """Fault injection: one worker thread ends, or claims a part of the next job and never returns."""
        self._library.call("glm53_cpu_lose_worker", self.handle, int(in_job))

    @property
    def library(self) -> Library:
        """The loaded library, for what shares this pool."""
        return self._library

    @property
    def handle(self) -> ctypes.c_void_p:
        """The native handle, for what shares this pool. Raises BadArgument once closed."""
        if not self._closer.alive:
            raise BadArgument("these kernels are closed")
        return self._handle


@dataclass(frozen=True, slots=True)
class Picks:
    """count times (expert int32, row int32, weight float32), as three buffers."""

    count: int
    expert: Buffer
    row: Buffer
    weight: Buffer


def _close(library: Library, handle: ctypes.c_void_p) -> None:
    library.call("glm53_cpu_close", handle)


def _linear_struct(linear: Linear) -> _abi.Linear:
    trellis, suh, svh = linear.addresses()
    return _sized(
        _abi.Linear(
            bits=linear.bits,
            in_features=linear.in_features,
            out_features=linear.out_features,
            trellis_bytes=linear.trellis_bytes,
            trellis=trellis,
            suh=suh,
            svh=svh,
        )
    )


def _sized(struct: _Struct) -> _Struct:
    struct.size = ctypes.sizeof(struct)
    return struct
