"""Where every expert lives now, on the device: slots in VRAM, homes in pinned RAM, pointer tables.

All changes are enqueued on the compute stream, in order with the kernels that read through the
tables, so no slot can be overwritten while an earlier kernel still reads it. Nothing here waits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch

from glm53_kernels.cuda import COUNTERS, MAX_PICKS, CudaKernels, ResidencyStruct, StepStruct
from glm53_server.moe.arena import ExpertArena

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
        words = max(1, -(-slots // 32))
        keys = layout.layers * layout.experts

        def zeros(count: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        addresses = [[table.data_ptr() for table in layer] for layer in tables]
        self._table_addresses = torch.tensor(addresses, dtype=torch.int64, device=device)
        self.slot_of = zeros(keys, torch.int32).fill_(-1)
        self.owner = zeros(max(1, slots), torch.int32).fill_(-1)
        self.slot_address = zeros(max(1, slots), torch.int64)
        self._referenced = zeros(words, torch.int32)
        self._locked = zeros(words, torch.int32)
        self.heat = zeros(keys, torch.int32)
        self._hand = zeros(1, torch.int32)
        self._counters = zeros(len(COUNTERS), torch.int64)
        self._jobs = zeros(2 * 256, torch.int64)
        self._num_jobs = zeros(1, torch.int32)
        self._num_cpu = zeros(1, torch.int32)
        self.state = ResidencyStruct(
            size=ctypes.sizeof(ResidencyStruct),
            layers=layout.layers,
            experts=layout.experts,
            slots=slots,
            home=arena.home,
            record_bytes=layout.record_bytes,
            up_offset=layout.offsets[1],
            down_offset=layout.offsets[2],
            tables=self._table_addresses.data_ptr(),
            slot_of=self.slot_of.data_ptr(),
            owner=self.owner.data_ptr(),
            slot_address=self.slot_address.data_ptr(),
            referenced=self._referenced.data_ptr(),
            locked=self._locked.data_ptr(),
            heat=self.heat.data_ptr(),
            hand=self._hand.data_ptr(),
            counters=self._counters.data_ptr(),
            jobs=self._jobs.data_ptr(),
            num_jobs=self._num_jobs.data_ptr(),
            num_cpu=self._num_cpu.data_ptr(),
        )
        # A second job list for look-ahead steps, which run beside the decode steps.
        self._ahead_jobs = zeros(2 * 256, torch.int64)
        self._ahead_num_jobs = zeros(1, torch.int32)
        self.ahead_state = ResidencyStruct.from_buffer_copy(self.state)
        self.ahead_state.jobs = self._ahead_jobs.data_ptr()
        self.ahead_state.num_jobs = self._ahead_num_jobs.data_ptr()
        properties = torch.cuda.get_device_properties(device)
        self.gather_blocks = 2 * properties.multi_processor_count
        self.admit_limit = (
            MAX_PICKS  # misses admitted per layer and step; the rest is read in place
        )
        self.gather_times: list[tuple[torch.cuda.Event, torch.cuda.Event]] | None = None

    def stream(self) -> int:
        """The compute stream: the one exllamav3 launches on."""
        return torch.cuda.current_stream(self.device).cuda_stream

    def decode_step(self, step: StepStruct) -> None:
        """Decide one layer's decode step, post the CPU tier's share, and copy the admitted experts."""
        stream = self.stream()
        step.admit_limit = self.admit_limit if self.slots else 0
        self.kernels.cache_step(self.state, step, stream)
        if not self.slots:
            return
        if self.gather_times is None:
            self.kernels.gather(self.state, self.gather_blocks, stream)
            return
        before = torch.cuda.Event(enable_timing=True)
        after = torch.cuda.Event(enable_timing=True)
        before.record()
        self.kernels.gather(self.state, self.gather_blocks, stream)
        after.record()
        self.gather_times.append((before, after))

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

    def save_heat(self, path: Path) -> None:
        """Write how often each expert was picked, halved so that old habits fade. Raises OSError."""
        scratch = path.with_suffix(".part")
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_bytes((self.heat // 2).cpu().numpy().tobytes())
        scratch.replace(path)

    def load_heat(self, path: Path) -> bool:
        """Take the counts of an earlier run; False when there are none for this geometry."""
        try:
            content = path.read_bytes()
        except OSError:
            return False
        if len(content) != 4 * self.heat.numel():
            return False
        self.heat.copy_(torch.frombuffer(bytearray(content), dtype=torch.int32))
        return True

    def verify(self) -> int:
        """Compare all slots and tables with the arena; returns how many differ in total so far. Waits."""
        self.kernels.verify(self.state, self.stream())
        return self.counters()["bad"]

    def counters(self) -> dict[str, int]:
        """Counters since the start. Waits for the device; not for the decode path."""
        return dict(zip(COUNTERS, self._counters.tolist(), strict=True))
