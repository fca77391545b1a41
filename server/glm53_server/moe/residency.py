"""Where every expert lives now, on the device: slots in VRAM, homes in pinned RAM, pointer tables.

All changes are enqueued on the compute stream, in order with the kernels that read through the
tables, so no slot can be overwritten while an earlier kernel still reads it. Nothing here waits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch

from glm53_kernels.cuda import (
    COUNTERS,
    MAX_COPIES,
    MAX_PICKS,
    CudaKernels,
    ResidencyStruct,
    StepStruct,
)
from glm53_server.moe import heat as expert_heat
from glm53_server.moe.arena import ExpertArena

# A gather beside other kernels: each block keeps 32 KiB under way, and a link is full with about 100.
COPY_BLOCKS = 16

Tables = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""exllamav3's gate, up and down trellis pointer tables of one layer: int64 [experts], device."""


class Residency:
    """Device-resident state of all experts plus the kernels that change it.

    tables[layer] are rewritten in place and must outlive this object. `gather_times`, when set to a
    list, collects event pairs around each step's copies (measurement only). `slot_address` entries may be
    0 while a slot is locked; a locked slot is never read or chosen.
    """

    def __init__(
        self,
        arena: ExpertArena,
        tables: Sequence[Tables],
        kernels: CudaKernels,
        slots: int,
        device: torch.device,
    ) -> None:
        layout = arena.layout
        self.kernels = kernels
        self.layout = layout
        self.slots = slots
        self.device = device
        self._tables = tables
        keys, words, some = layout.layers * layout.experts, max(1, -(-slots // 32)), max(1, slots)

        def zeros(count: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        addresses = [[table.data_ptr() for table in layer] for layer in tables]
        self._arrays = {
            "tables": torch.tensor(addresses, dtype=torch.int64, device=device),
            "slot_of": zeros(keys, torch.int32).fill_(-1),
            "owner": zeros(some, torch.int32).fill_(-1),
            "slot_address": zeros(some, torch.int64),
            "locked": zeros(words, torch.int32),
            "heat": zeros(keys, torch.int32),
            "last": zeros(keys, torch.int32),
            "hand": zeros(1, torch.int32),
            "counters": zeros(len(COUNTERS), torch.int64),
            "jobs": zeros(2 * MAX_PICKS, torch.int64),
            "num_jobs": zeros(1, torch.int32),
            "num_cpu": zeros(1, torch.int32),
            "pending": zeros(2 + 2 * MAX_COPIES, torch.int32),
            "copied": zeros(1, torch.int32),
        }
        self.slot_of = self._arrays["slot_of"]
        self.owner = self._arrays["owner"]
        self.slot_address = self._arrays["slot_address"]
        self.state = ResidencyStruct(
            size=ctypes.sizeof(ResidencyStruct),
            layers=layout.layers,
            experts=layout.experts,
            slots=slots,
            home=arena.home,
            record_bytes=layout.record_bytes,
            up_offset=layout.offsets[1],
            down_offset=layout.offsets[2],
            **{name: array.data_ptr() for name, array in self._arrays.items()},
        )
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        self.gather_blocks = 2 * processors
        # Misses admitted per layer and step; the rest is read in place or computed by the CPU.
        self.admit_limit = MAX_PICKS
        self.gather_times: list[tuple[torch.cuda.Event, torch.cuda.Event]] | None = None
        # Copy everything so many times: a link that is as many times narrower (fault tests, benches).
        self.gather_repeats = 1

    @property
    def most_admitted(self) -> int:
        """Misses that a step may admit."""
        return self.admit_limit if self.slots else 0

    def stream(self) -> int:
        """The compute stream: the one exllamav3 launches on."""
        return torch.cuda.current_stream(self.device).cuda_stream

    def decode_step(self, step: StepStruct) -> None:
        """Decide one layer's decode step, post the CPU tier's share, and copy the admitted experts."""
        stream = self.stream()
        step.admit_limit = self.most_admitted
        self.kernels.cache_step(self.state, step, stream)
        if not self.slots:
            return
        if self.gather_times is None:
            self._gather(stream)
            return
        before = torch.cuda.Event(enable_timing=True)
        after = torch.cuda.Event(enable_timing=True)
        before.record()
        self._gather(stream)
        after.record()
        self.gather_times.append((before, after))

    def _gather(self, stream: int) -> None:
        for _ in range(self.gather_repeats):
            self.kernels.gather(self.state, self.gather_blocks, stream)

    def new_step(self, layer: int) -> StepStruct:
        """A step of one layer, to be filled in and used again every decode step."""
        return StepStruct(size=ctypes.sizeof(StepStruct), layer=layer, per_row=1, gpu_share=1.0)

    def rebuild(
        self, first_layer: int, num_layers: int, overrides: torch.Tensor | None = None
    ) -> None:
        """Rewrite tables from residency; overrides: int64 [layers * experts] addresses, 0 = none."""
        address = None if overrides is None else overrides.data_ptr()
        self.kernels.tables_rebuild(self.state, first_layer, num_layers, address, self.stream())

    def evict(self, first: int, count: int, *, lock: bool) -> None:
        """Empty a slot range and lock or unlock it."""
        if count:
            self.kernels.slots_evict(self.state, first, count, lock=lock, stream=self.stream())

    def adopt(self, first: int, keys: torch.Tensor) -> None:
        """Declare the contents of slots from `first` on: keys int32 [n] on the device, -1 skips."""
        if keys.numel():
            self.kernels.slots_adopt(
                self.state, first, keys.numel(), keys.data_ptr(), self.stream()
            )

    def forget_pending(self) -> None:
        """Copies that were looked ahead never end: no step waits for them, and their slots stay locked."""
        self._arrays["pending"][0].fill_(0)

    def _now(self) -> torch.Tensor:
        """The decode step that the next cache step belongs to, as the kernels count: int64 [1]."""
        steps = COUNTERS.index("steps")
        return self._arrays["counters"][steps : steps + 1] // self.layout.layers

    def heat(self) -> torch.Tensor:
        """How much each expert was picked lately: int64 [keys] on the device."""
        return expert_heat.aged(self._arrays["heat"], self._arrays["last"], self._now())

    def save_heat(self, path: Path) -> None:
        """Write what is warm now. Raises OSError."""
        expert_heat.save(path, self.heat())

    def load_heat(self, path: Path) -> bool:
        """Start with the heat of an earlier run; False when there is none for this geometry."""
        found = expert_heat.load(path, self._arrays["heat"].numel())
        if found is None:
            return False
        self._arrays["heat"].copy_(found)
        self._arrays["last"].copy_(self._now().expand_as(self._arrays["last"]))
        return True

    def verify(self) -> int:
        """Compare all slots and tables with the arena; returns how many differ in total so far. Waits."""
        self.kernels.verify(self.state, self.stream())
        return self.counters()["bad"]

    def counters(self) -> dict[str, int]:
        """Counters since the start. Waits for the device; not for the decode path."""
        return dict(zip(COUNTERS, self._arrays["counters"].tolist(), strict=True))
