"""VRAM for expert slots: a base block, two staging blocks, and flexible chunks.

In decode all of them hold cached experts. In prefill the staging blocks receive layers ahead of
their use and the flexible chunks go back to torch for activations. Slot numbers are fixed; a chunk
that comes back gets new addresses. The base is made of chunks too, so that it can shrink when
another process takes VRAM.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

CHUNK_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """How many slots each part has. Ranges follow each other: base, stage (two halves), flex."""

    base: int
    stage: int  # per staging buffer
    flex_chunks: int
    slots_per_chunk: int

    @property
    def stage_first(self) -> int:
        return self.base

    @property
    def flex_first(self) -> int:
        return self.base + 2 * self.stage

    @property
    def elastic(self) -> int:
        """Slots given up in prefill."""
        return 2 * self.stage + self.flex

    @property
    def flex(self) -> int:
        return self.flex_chunks * self.slots_per_chunk

    @property
    def total(self) -> int:
        return self.base + self.elastic


def plan_slots(
    free_bytes: int, record_bytes: int, *, stage_bytes: int, activation_bytes: int, max_slots: int
) -> SlotPlan:
    """Divide free VRAM into slots. Pure.

    stage_bytes is per buffer; at most a quarter of the free bytes goes to each so that decode keeps
    a cache of its own during prefill. activation_bytes come from flexible chunks. max_slots caps
    the total (one slot per expert is the most that can help).
    """
    total = max(0, min(free_bytes // record_bytes, max_slots))
    stage = min(stage_bytes // record_bytes, total // 4)
    per_chunk = max(1, CHUNK_BYTES // record_bytes)
    flex_chunks = min(
        -(-activation_bytes // (per_chunk * record_bytes)), (total - 2 * stage) // per_chunk
    )
    flex_chunks = max(0, flex_chunks)
    base = total - 2 * stage - flex_chunks * per_chunk
    return SlotPlan(base, stage, flex_chunks, per_chunk)


class SlotMemory:
    """The tensors behind the slots of a SlotPlan."""

    def __init__(self, plan: SlotPlan, record_bytes: int, device: torch.device) -> None:
        self.plan = plan
        self._record_bytes = record_bytes
        self._device = device
        self._base = [self._allocate(slots) for slots in self._base_sizes()]
        self._stage = [self._allocate(plan.stage) for _ in range(2)]
        self._flex: list[torch.Tensor | None] = [
            self._allocate(plan.slots_per_chunk) for _ in range(plan.flex_chunks)
        ]

    def _base_sizes(self) -> list[int]:
        whole, rest = divmod(self.plan.base, self.plan.slots_per_chunk)
        return [self.plan.slots_per_chunk] * whole + [rest] * (rest > 0)

    def _allocate(self, slots: int) -> torch.Tensor:
        return torch.empty(slots * self._record_bytes, dtype=torch.uint8, device=self._device)

    def _addresses_of(self, block: torch.Tensor | None, slots: int) -> list[int]:
        if block is None:
            return [0] * slots
        return [block.data_ptr() + i * self._record_bytes for i in range(slots)]

    def addresses(self) -> list[int]:
        """Address of every slot, 0 where a flexible chunk is lent out."""
        result: list[int] = []
        for i, slots in enumerate(self._base_sizes()):
            result += self._addresses_of(self._base[i] if i < len(self._base) else None, slots)
        for block in self._stage:
            result += self._addresses_of(block, self.plan.stage)
        for block in self._flex:
            result += self._addresses_of(block, self.plan.slots_per_chunk)
        return result

    def stage_address(self, buffer: int) -> int:
        """Address of slot 0 of a staging buffer; its slots are contiguous."""
        return self._stage[buffer].data_ptr()

    @property
    def base_held(self) -> int:
        """Slots of the base that have memory; the others were given up."""
        return sum(self._base_sizes()[: len(self._base)])

    def last_chunks(self, wanted_bytes: int) -> tuple[int, int]:
        """(first slot, count) at the end of the base that make up the bytes, or all that are left."""
        end = first = self.base_held
        for slots in reversed(self._base_sizes()[: len(self._base)]):
            if (end - first) * self._record_bytes >= wanted_bytes:
                break
            first -= slots
        return first, end - first

    def give_up(self, first: int) -> None:
        """Free the base's chunks from slot `first` on. Their slots must be evicted and locked."""
        while self._base and self.base_held > first:
            self._base.pop()

    def grow(self, spare_bytes: int) -> tuple[int, int]:
        """Take given-up chunks again while they fit; returns (first slot, count) of what came back."""
        first = self.base_held
        for slots in self._base_sizes()[len(self._base) :]:
            spare_bytes -= slots * self._record_bytes
            if spare_bytes < 0:
                break
            try:
                self._base.append(self._allocate(slots))
            except torch.OutOfMemoryError:
                break
        return first, self.base_held - first

    def lend_flex(self) -> None:
        """Give the flexible chunks back to torch. Their slots must be evicted and locked."""
        self._flex = [None] * self.plan.flex_chunks

    def reclaim_flex(self) -> int:
        """Take the flexible chunks again; returns how many could not be had."""
        missing = 0
        for i, block in enumerate(self._flex):
            if block is not None:
                continue
            try:
                self._flex[i] = self._allocate(self.plan.slots_per_chunk)
            except torch.OutOfMemoryError:
                missing += 1
        return missing
