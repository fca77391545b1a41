"""Typed access to libglm53_cuda.so: residency kernels, pinned host memory, copies.

Addresses are ints, streams are cudaStream_t as int. Nothing here knows torch. Every failure is a
CudaKernelError with the library's own text.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from .cuda_experts import AheadStruct, ExpertsStruct, ForkStruct
from .cuda_router import RouterStruct
from .sources import CUDA, LIB, have_sources, is_stale

ABI_VERSION = 8
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
        ("copied", ctypes.c_uint64),
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
        ("runs", ctypes.c_uint64),
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
        self._declare_all()

    def _declare_all(self) -> None:
        pointer, integer, wide = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint64
        state, step = ctypes.POINTER(ResidencyStruct), ctypes.POINTER(StepStruct)
        experts, fork = ctypes.POINTER(ExpertsStruct), ctypes.POINTER(ForkStruct)
        router, ahead = ctypes.POINTER(RouterStruct), ctypes.POINTER(AheadStruct)
        arguments: dict[str, tuple[object, ...]] = {
            "cache_step": (state, step, pointer),
            "mailbox_wait": (step, pointer),
            "combine": (state, step, pointer, pointer),
            "gather": (state, integer, pointer),
            "experts_prepare": (experts,),
            "layer_begin": (state, experts, step, fork, pointer),
            "layer_end": (state, experts, step, fork, pointer, pointer),
            "guess": (router, pointer, integer, pointer),
            "look_ahead": (state, router, step, ahead),
            "settle": (state, pointer),
            "tables_rebuild": (state, integer, integer, pointer, pointer),
            "slots_evict": (state, integer, integer, integer, pointer),
            "slots_adopt": (state, integer, integer, pointer, pointer),
            "verify": (state, pointer),
            "host_register": (wide, wide, ctypes.POINTER(wide)),
            "host_unregister": (wide,),
            "copy_async": (wide, wide, wide, pointer),
            "copier_create": (wide, wide, pointer, ctypes.POINTER(pointer)),
            "copier_drain": (pointer, integer, ctypes.POINTER(integer)),
            "copier_failed": (pointer,),
            "copier_destroy": (pointer,),
        }
        for name, types in arguments.items():
            function = getattr(self._lib, f"glm53_{name}")
            function.argtypes, function.restype = types, ctypes.c_int

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

    def experts_prepare(self, model: ExpertsStruct) -> None:
        """Make the kernels of such a layer ready; refuses shapes and bits that they cannot do."""
        self._check(self._lib.glm53_experts_prepare(model))

    def layer_begin(
        self, state: ResidencyStruct, model: ExpertsStruct, step: StepStruct, fork: ForkStruct,
        stream: int,
    ) -> None:  # fmt: skip
        """Once the inputs on `stream` are there: cache_step, gather and the GPU's experts, beside it."""
        self._check(self._lib.glm53_layer_begin(state, model, step, fork, stream))

    def layer_end(
        self, state: ResidencyStruct, model: ExpertsStruct, step: StepStruct, fork: ForkStruct,
        final: int, stream: int,
    ) -> None:  # fmt: skip
        """Wait for that and for the CPU tier, and add all to float32 [rows, hidden] at `final`."""
        self._check(self._lib.glm53_layer_end(state, model, step, fork, final, stream))

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

    def look_ahead(
        self,
        state: ResidencyStruct,
        router: RouterStruct | None,
        step: StepStruct,
        ahead: AheadStruct,
    ) -> None:
        """Guess from the step's x and decide a look-ahead step."""
        self._check(self._lib.glm53_look_ahead(state, router, step, ahead))

    def copier_create(self, box: int, record_bytes: int, done: int) -> int:
        """Start a copy thread over a zeroed, pinned copy box at a host address; returns its handle."""
        handle = ctypes.c_void_p()
        self._check(self._lib.glm53_copier_create(box, record_bytes, done, ctypes.byref(handle)))
        return handle.value or 0

    def copier_failed(self, copier: int) -> bool:
        """True once a copy failed: what was posted with it never ends."""
        return bool(self._lib.glm53_copier_failed(copier))

    def copier_drain(self, copier: int, limit_ms: int) -> bool:
        """Wait until all posted copies are done; False when the thread does not take them up in time."""
        idle = ctypes.c_int32()
        self._check(self._lib.glm53_copier_drain(copier, limit_ms, ctypes.byref(idle)))
        return bool(idle.value)

    def copier_destroy(self, copier: int) -> None:
        """End the thread after its last copy."""
        self._check(self._lib.glm53_copier_destroy(copier))

    def guess(self, router: RouterStruct, x: int, rows: int, stream: int) -> None:
        """Write to router.out the experts that it likes best for any row of fp16 [rows, hidden] at `x`."""
        self._check(self._lib.glm53_guess(router, x, rows, stream))

    def settle(self, state: ResidencyStruct, stream: int) -> None:
        """Take in the looked-ahead copies that are done, without a step."""
        self._check(self._lib.glm53_settle(state, stream))
