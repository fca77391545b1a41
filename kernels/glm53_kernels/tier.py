"""The CPU tier of fast mode: a native thread that computes what the GPU posts in a mailbox."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from . import _abi
from ._load import Library
from .buffers import counted
from .cpu import CpuKernels
from .errors import BadArgument


@dataclass(frozen=True, slots=True)
class TierStats:
    """Totals since the start. `busy_ns` is time spent computing; `aborted` means a job timed out."""

    aborted: bool
    jobs: int
    experts: int
    picks: int
    busy_ns: int
    max_busy_ns: int
    timeouts: int


@dataclass(frozen=True, slots=True)
class TierShape:
    """Sizes of all experts of a model. act_limit 0 means no clamp; watchdog_ms bounds one job."""

    layers: int
    experts: int
    hidden: int
    intermediate: int
    bits: tuple[int, int, int]
    act_limit: float
    watchdog_ms: int


class CpuTier:
    """One running tier over a CpuKernels pool, which it shares with nobody while it is open.

    addresses: per expert in key order the nine addresses of glm53_expert; that memory and the
    mailbox (mailbox_bytes, 64-byte aligned) must outlive the tier. Closing the pool closes the tier.
    Raises BadArgument, also for a closed pool, and for every call once closed.
    """

    def __init__(
        self,
        pool: CpuKernels,
        shape: TierShape,
        addresses: Sequence[tuple[int, ...]],
        mailbox: int,
    ) -> None:
        for name in ("layers", "experts", "hidden", "intermediate", "watchdog_ms"):
            counted(name, getattr(shape, name))
        bits = [counted("bits", number) for number in shape.bits]
        if len(addresses) != shape.layers * shape.experts:
            raise BadArgument(
                f"{len(addresses)} experts given, {shape.layers} x {shape.experts} needed"
            )
        table = (_abi.Expert * len(addresses))(*(_abi.Expert(*row) for row in addresses))
        args = _abi.CpuTierArgs(
            size=ctypes.sizeof(_abi.CpuTierArgs),
            layers=shape.layers,
            experts=shape.experts,
            hidden=shape.hidden,
            intermediate=shape.intermediate,
            gate_bits=bits[0],
            up_bits=bits[1],
            down_bits=bits[2],
            act_limit=shape.act_limit,
            watchdog_ms=shape.watchdog_ms,
            tables=ctypes.addressof(table),
            mailbox=mailbox,
        )
        self._library = pool.library
        self._pool = pool
        self._handle = ctypes.c_void_p()
        self._library.call(
            "glm53_cpu_tier_open", pool.handle, ctypes.byref(args), ctypes.byref(self._handle)
        )
        self._ended = True
        self._closer = weakref.finalize(self, _close, self._library, self._handle)
        self._calling = threading.Lock()
        self._closed = False
        pool.share(self)

    @staticmethod
    def mailbox_bytes(pool: CpuKernels, hidden: int) -> int:
        """Size of the mailbox for a hidden size."""
        size = ctypes.c_uint64()
        wide = counted("hidden", hidden)
        pool.library.call("glm53_cpu_tier_mailbox_bytes", wide, ctypes.byref(size))
        return size.value

    def stats(self) -> TierStats:
        """Counters now. Any thread."""
        found = _abi.CpuTierCounters(size=ctypes.sizeof(_abi.CpuTierCounters))
        self._call("glm53_cpu_tier_stats", ctypes.byref(found))
        return TierStats(
            bool(found.aborted),
            found.jobs,
            found.experts,
            found.picks,
            found.busy_ns,
            found.max_busy_ns,
            found.timeouts,
        )

    def reset(self) -> bool:
        """Accept jobs again after an abort; False while the job that hung is still being computed."""
        accepted = ctypes.c_int32()
        self._call("glm53_cpu_tier_reset", ctypes.byref(accepted))
        return bool(accepted.value)

    def _call(self, name: str, out: object) -> None:
        with self._calling:  # close() must not free what another thread asks
            if self._closed:
                raise BadArgument("this tier is closed")
            self._library.call(name, self._handle, out)

    def close(self) -> bool:
        """Stop the tier's threads; waits for a job under way. Idempotent.

        False when a worker never came back from it: then a thread still uses the addresses, the
        mailbox and the pool, and all of them must stay until the process ends.
        """
        with self._calling:
            self._closed = True
        ended = self._closer()
        if ended is not None:
            self._ended = ended
        return self._ended


def _close(library: Library, handle: ctypes.c_void_p) -> bool:
    ended = ctypes.c_int32()
    library.call("glm53_cpu_tier_close", handle, ctypes.byref(ended))
    return bool(ended.value)
