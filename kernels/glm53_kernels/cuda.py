"""Typed access to libglm53_cuda.so: residency kernels, pinned host memory, copies.

Addresses are ints, streams are cudaStream_t as int. Nothing here knows torch. Every failure is a
CudaKernelError with the library's own text.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from .sources import CUDA, LIB, have_sources, is_stale

ABI_VERSION = 7
COUNTERS = (
    "hits",
    "misses",
    "admitted",
    "evictions",
    "no_victim",
    "invalid",
    "steps",
    "bad",
    "lookahead",
    "lookahead_waits",
)
MAX_PICKS = 256
MAX_COPIES = 16  # kCopyJobs of csrc/core/copy_box.h
COPY_BOX_BYTES = 512  # sizeof(CopyBox), rounded up
LIBRARY = LIB / CUDA.library


class CudaKernelError(RuntimeError):
    """The CUDA library is missing, of another version, or a call failed."""


class ResidencyStruct(ctypes.Structure):
    """glm53_residency of csrc/cuda/abi_cuda.h, field by field."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("layers", ctypes.c_int32),
        ("experts", ctypes.c_int32),
        ("slots", ctypes.c_int32),
        ("home", ctypes.c_uint64),
        ("record_bytes", ctypes.c_uint64),
        ("up_offset", ctypes.c_uint64),
        ("down_offset", ctypes.c_uint64),
        ("tables", ctypes.c_uint64),
        ("slot_of", ctypes.c_uint64),
        ("owner", ctypes.c_uint64),
        ("slot_address", ctypes.c_uint64),
        ("locked", ctypes.c_uint64),
        ("heat", ctypes.c_uint64),
        ("last", ctypes.c_uint64),
        ("hand", ctypes.c_uint64),
        ("counters", ctypes.c_uint64),
        ("jobs", ctypes.c_uint64),
        ("num_jobs", ctypes.c_uint64),
        ("num_cpu", ctypes.c_uint64),
        ("pending", ctypes.c_uint64),
        ("copy_box", ctypes.c_uint64),
    )


class StepStruct(ctypes.Structure):
    """glm53_step of csrc/cuda/abi_cuda.h, field by field."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("layer", ctypes.c_int32),
        ("num_picks", ctypes.c_int32),
        ("per_row", ctypes.c_int32),
        ("admit_limit", ctypes.c_int32),
        ("gpu_share", ctypes.c_float),
        ("dither", ctypes.c_float),
        ("sequence", ctypes.c_uint32),
        ("hidden", ctypes.c_uint32),
        ("lookahead", ctypes.c_uint32),
        ("num_protected", ctypes.c_int32),
        ("picks", ctypes.c_uint64),
        ("x", ctypes.c_uint64),
        ("weights", ctypes.c_uint64),
        ("mailbox", ctypes.c_uint64),
        ("protected_picks", ctypes.c_uint64),
    )


class CudaKernels:
    """One loaded libglm53_cuda.so. Methods only enqueue work; none synchronises or allocates."""

    def __init__(self, library: Path = LIBRARY) -> None:
        if library == LIBRARY and library.exists() and have_sources() and is_stale(CUDA):
            raise CudaKernelError(f"{library} was not built from these sources: run `make kernels`")
        try:
            self._lib = ctypes.CDLL(str(library))
        except OSError as err:
            raise CudaKernelError(
                f"cannot load {library}: {err}. Build it with `make kernels` (needs nvcc)"
            ) from err
        self._lib.glm53_cuda_last_error.restype = ctypes.c_char_p
        found = (
            self._lib.glm53_cuda_abi_version(),
            self._lib.glm53_cuda_sizeof_residency(),
            self._lib.glm53_cuda_sizeof_step(),
        )
        wanted = (ABI_VERSION, ctypes.sizeof(ResidencyStruct), ctypes.sizeof(StepStruct))
        if found != wanted:
            raise CudaKernelError(
                f"{library} has (ABI, residency bytes, step bytes) {found}, these bindings need {wanted}: "
                "run `make kernels`"
            )
        pointer, integer, wide = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint64
        state = ctypes.POINTER(ResidencyStruct)
        step = ctypes.POINTER(StepStruct)
        self._declare("glm53_cache_step", state, step, pointer)
        self._declare("glm53_mailbox_wait", step, pointer)
        self._declare("glm53_combine", state, step, pointer, pointer)
        self._declare("glm53_gather", state, integer, pointer)
        self._declare("glm53_tables_rebuild", state, integer, integer, pointer, pointer)
        self._declare("glm53_slots_evict", state, integer, integer, integer, pointer)
        self._declare("glm53_slots_adopt", state, integer, integer, pointer, pointer)
        self._declare("glm53_verify", state, pointer)
        self._declare("glm53_host_register", wide, wide, ctypes.POINTER(wide))
        self._declare("glm53_host_unregister", wide)
        self._declare("glm53_copy_async", wide, wide, wide, pointer)
        self._declare("glm53_copier_create", wide, wide, ctypes.POINTER(pointer))
        self._declare("glm53_copier_drain", pointer, integer, ctypes.POINTER(integer))
        self._declare("glm53_settle", state, pointer)
        self._declare("glm53_copier_failed", pointer)
        self._declare("glm53_copier_destroy", pointer)

    def _declare(self, name: str, *argument_types: object) -> None:
        function = getattr(self._lib, name)
        function.argtypes = argument_types
        function.restype = ctypes.c_int

    def _check(self, status: int) -> None:
        if status:
            raise CudaKernelError(self._lib.glm53_cuda_last_error().decode())

    def cache_step(self, state: ResidencyStruct, step: StepStruct, stream: int) -> None:
        """Decide one decode step of one layer and post the CPU tier's share of it."""
        self._check(self._lib.glm53_cache_step(state, step, stream))

    def mailbox_wait(self, step: StepStruct, stream: int) -> None:
        """Let the stream wait for the CPU tier's answer to this step."""
        self._check(self._lib.glm53_mailbox_wait(step, stream))

    def combine(self, state: ResidencyStruct, step: StepStruct, final: int, stream: int) -> None:
        """Add the CPU tier's sum to float32 [rows, hidden] at `final`."""
        self._check(self._lib.glm53_combine(state, step, final, stream))

    def gather(self, state: ResidencyStruct, blocks: int, stream: int) -> None:
        """Copy the records the last cache_step admitted, with `blocks` thread blocks."""
        self._check(self._lib.glm53_gather(state, blocks, stream))

    def tables_rebuild(
        self,
        state: ResidencyStruct,
        first_layer: int,
        num_layers: int,
        overrides: int | None,
        stream: int,
    ) -> None:
        """Rewrite pointer tables from residency; `overrides` is a device uint64 [layers*experts] or None."""
        self._check(
            self._lib.glm53_tables_rebuild(state, first_layer, num_layers, overrides, stream)
        )

    def slots_evict(
        self, state: ResidencyStruct, first: int, count: int, *, lock: bool, stream: int
    ) -> None:
        """Empty slots [first, first+count); locked ones are no victims until evicted with lock=False."""
        self._check(self._lib.glm53_slots_evict(state, first, count, int(lock), stream))

    def slots_adopt(
        self, state: ResidencyStruct, first: int, count: int, keys: int, stream: int
    ) -> None:
        """Declare that slots [first, first+count) hold the experts of device int32 keys[count]."""
        self._check(self._lib.glm53_slots_adopt(state, first, count, keys, stream))

    def verify(self, state: ResidencyStruct, stream: int) -> None:
        """Compare every slot with its home record; differences are added to the "bad" counter."""
        self._check(self._lib.glm53_verify(state, stream))

    def host_register(self, address: int, size_bytes: int) -> int:
        """Pin host memory; returns its device alias."""
        alias = ctypes.c_uint64()
        self._check(self._lib.glm53_host_register(address, size_bytes, ctypes.byref(alias)))
        return alias.value

    def host_unregister(self, address: int) -> None:
        """Undo host_register."""
        self._check(self._lib.glm53_host_unregister(address))

    def copy_async(self, destination: int, source: int, size_bytes: int, stream: int) -> None:
        """Enqueue a copy from registered host memory to a device address; refused for any other."""
        self._check(self._lib.glm53_copy_async(destination, source, size_bytes, stream))

    def copier_create(self, box: int, record_bytes: int) -> int:
        """Start a copy thread over a zeroed, pinned copy box at a host address; returns its handle."""
        handle = ctypes.c_void_p()
        self._check(self._lib.glm53_copier_create(box, record_bytes, ctypes.byref(handle)))
        return handle.value or 0

    def copier_failed(self, copier: int) -> bool:
        """True once a copy failed: nothing is looked ahead any more."""
        return bool(self._lib.glm53_copier_failed(copier))

    def copier_drain(self, copier: int, limit_ms: int) -> bool:
        """Wait until all posted copies are done; False when they are not within the limit."""
        idle = ctypes.c_int32()
        self._check(self._lib.glm53_copier_drain(copier, limit_ms, ctypes.byref(idle)))
        return bool(idle.value)

    def settle(self, state: ResidencyStruct, stream: int) -> None:
        """Take in what the copier has done, without a step."""
        self._check(self._lib.glm53_settle(state, stream))

    def copier_destroy(self, copier: int) -> None:
        """End the thread after its last copy."""
        self._check(self._lib.glm53_copier_destroy(copier))
