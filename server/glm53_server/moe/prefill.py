"""Prefill: every layer's missing experts are copied one layer ahead, by the copy engine.

While layer l computes, layer l + 1 arrives in the other staging buffer; what does not fit is read
in place over the link. Decode's cache is not touched, except for the slots that staging and
activations need; these are refilled afterwards, hottest experts first, in the background.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from glm53_server.moe.residency import Residency
from glm53_server.moe.slots import SlotMemory
from glm53_server.moe.stage_plan import LayerStage, plan_stage, slot_runs

REFILL_BATCH = 32  # slots per background copy batch


@dataclass(slots=True)
class StageStats:
    """Counters of staging; `bytes` crossed the link, `overflow` experts were read in place.

    `shrunk` slots were given up to other processes, `regrown` of them came back.
    """

    forwards: int = 0
    layers: int = 0
    experts: int = 0
    overflow: int = 0
    bytes: int = 0
    refilled: int = 0
    realloc_fail: int = 0
    enter: int = 0
    exit: int = 0
    shrunk: int = 0
    regrown: int = 0
    begin_ms: float = 0.0


@dataclass(slots=True)
class Pass:
    """One staged forward pass: planned copies per layer and their completion events."""

    stages: list[LayerStage]
    overrides: torch.Tensor
    arrived: list[torch.cuda.Event | None] = field(default_factory=list[torch.cuda.Event | None])
    issued: int = 0


class PrefillStager:
    """Owns the copy stream, the staging buffers and the prefill state of the cache, which is empty at first.

    Called on the engine thread only. `enter` and `begin_pass` read the residency back (one wait per
    prefill chunk); nothing else waits for the device.
    """

    def __init__(self, residency: Residency, memory: SlotMemory, reserve_bytes: int = 0) -> None:
        self._residency = residency
        self.reserve_bytes = reserve_bytes  # VRAM to keep free beside the cache
        self._memory = memory
        self._copy_stream = torch.cuda.Stream(residency.device)
        self._pass: Pass | None = None
        self._refill: list[tuple[int, list[int]]] = []  # (first slot, keys)
        self._in_flight: tuple[torch.cuda.Event, int, list[int]] | None = None
        self.in_prefill = False
        self.stats = StageStats()
        # Nothing is there to evict: this loads the kernel, for which a full card would have no room.
        residency.evict(0, residency.slots, lock=False)

    @property
    def capacity(self) -> int:
        """Experts one staging buffer holds."""
        return self._memory.plan.stage

    def enter(self) -> None:
        """Empty and lock the elastic slots and lend the flexible memory to torch."""
        if self.in_prefill:
            return
        plan = self._memory.plan
        self._cancel_refill()
        self._residency.evict(plan.stage_first, plan.elastic, lock=True)
        self._memory.lend_flex()
        self.in_prefill = True
        self.stats.enter += 1

    def leave(self) -> None:
        """Take the elastic slots back and start refilling them in the background."""
        if not self.in_prefill:
            return
        plan = self._memory.plan
        self._pass = None
        self.stats.realloc_fail += self._memory.reclaim_flex()
        addresses = torch.tensor(self._memory.addresses(), dtype=torch.int64)
        if addresses.numel():
            self._residency.slot_address.copy_(addresses)
        self._residency.rebuild(0, self._residency.layout.layers)
        self.in_prefill = False
        self.stats.exit += 1
        self._plan_refill(plan.stage_first, plan.elastic, addresses.tolist())

    def begin_pass(self, *, skip_last: bool) -> None:
        """Plan a staged pass over all layers and start copying the first two.

        skip_last: the pass ends before the last block's experts (a pure prefill of the cache).
        """
        started = time.perf_counter()
        self.enter()
        layout = self._residency.layout
        slot_of = self._residency.slot_of.cpu().view(layout.layers, layout.experts)
        heat = self._residency.heat().cpu().view(layout.layers, layout.experts)
        overrides = torch.zeros(layout.layers, layout.experts, dtype=torch.int64)
        stages: list[LayerStage] = []
        for layer in range(layout.layers):
            last = skip_last and layer == layout.layers - 1
            missing = [] if last else torch.nonzero(slot_of[layer] < 0).flatten().tolist()
            home = self._residency.state.home + layer * layout.layer_bytes
            buffer = self._memory.stage_address(layer % 2)
            stage = plan_stage(
                missing,
                heat[layer].tolist(),
                capacity=self.capacity,
                home=home,
                destination=buffer,
                record_bytes=layout.record_bytes,
            )
            stages.append(stage)
            self.stats.overflow += len(missing) - len(stage.experts)
            if stage.experts:
                positions = torch.arange(len(stage.experts), dtype=torch.int64)
                overrides[layer, list(stage.experts)] = buffer + positions * layout.record_bytes
        device_overrides = overrides.flatten().to(self._residency.device)
        self._pass = Pass(stages, device_overrides, [None] * layout.layers)
        self.stats.forwards += 1
        self._issue_next()
        self._issue_next()
        self.stats.begin_ms += (time.perf_counter() - started) * 1e3

    def end_pass(self) -> None:
        """Forget a pass and point all tables back at slots and homes. Copies under way are let finish."""
        if self._pass is None:
            return
        torch.cuda.current_stream(self._residency.device).wait_stream(self._copy_stream)
        self._pass = None
        self._residency.rebuild(0, self._residency.layout.layers)

    @property
    def passing(self) -> bool:
        return self._pass is not None

    def before_layer(self, layer: int) -> None:
        """Make the compute stream wait for the layer's copies and point its tables at them."""
        current = self._pass
        if current is None:
            return
        event = current.arrived[layer]
        if event is not None:
            torch.cuda.current_stream(self._residency.device).wait_event(event)
        self._residency.rebuild(layer, 1, current.overrides)
        self.stats.layers += 1

    def after_layer(self) -> None:
        """The layer's kernels are enqueued: its buffer may be filled again after them."""
        if self._pass is not None:
            self._issue_next()

    def _issue_next(self) -> None:
        current = self._pass
        if current is None or current.issued >= len(current.stages):
            return
        layer = current.issued
        current.issued += 1
        stage = current.stages[layer]
        # The buffer was last read by layer - 2, whose kernels are on the compute stream already.
        self._copy_stream.wait_stream(torch.cuda.current_stream(self._residency.device))
        for source, destination, size in stage.runs:
            self._residency.kernels.copy_async(
                destination, source, size, self._copy_stream.cuda_stream
            )
            self.stats.bytes += size
        self.stats.experts += len(stage.experts)
        event = torch.cuda.Event()
        event.record(self._copy_stream)
        current.arrived[layer] = event

    def _plan_refill(self, first: int, count: int, addresses: list[int]) -> None:
        """Queue the hottest absent experts for the slots of a range that have memory again."""
        usable = [slot for slot in range(first, first + count) if addresses[slot]]
        resident = self._residency.slot_of >= 0
        heat = self._residency.heat().masked_fill(resident, 0)
        values, keys = torch.topk(heat, min(len(usable), heat.numel()))
        wanted = [k for k, v in zip(keys.tolist(), values.tolist(), strict=True) if v > 0]
        position = 0
        for start, length in slot_runs(usable[: len(wanted)], REFILL_BATCH):
            self._refill.append((start, wanted[position : position + length]))
            position += length
        for start, length in slot_runs(usable[len(wanted) :], count):
            self._residency.evict(start, length, lock=False)  # nothing comes: free for admission

    def warm_start(self) -> None:
        """Fill the empty cache with the hottest experts, in the background of the first tokens."""
        plan = self._memory.plan
        self._residency.evict(0, plan.total, lock=True)
        self._plan_refill(0, plan.total, self._memory.addresses())

    def poll_refill(self) -> None:
        """Called once per decode step: publish a finished batch, start the next. Never waits."""
        if self._in_flight is not None:
            event, first, keys = self._in_flight
            if not event.query():
                return
            self._residency.evict(first, len(keys), lock=False)
            self._residency.adopt(
                first, torch.tensor(keys, dtype=torch.int32).to(self._residency.device)
            )
            self.stats.refilled += len(keys)
            self._in_flight = None
        if not self._refill or self.in_prefill:
            return
        first, keys = self._refill.pop(0)
        layout = self._residency.layout
        # Reads of the old contents were enqueued before; the copies must come after them.
        self._copy_stream.wait_stream(torch.cuda.current_stream(self._residency.device))
        addresses = self._memory.addresses()
        for i, key in enumerate(keys):
            source = self._residency.state.home + key * layout.record_bytes
            self._residency.kernels.copy_async(
                addresses[first + i], source, layout.record_bytes, self._copy_stream.cuda_stream
            )
        event = torch.cuda.Event()
        event.record(self._copy_stream)
        self._in_flight = (event, first, keys)

    def shrink(self, wanted_bytes: int) -> int:
        """Give up cached experts at the end of the base; returns the bytes. Nothing may be running."""
        if wanted_bytes <= 0:
            return 0
        self.end_pass()
        self._cancel_refill()
        first, count = self._memory.last_chunks(wanted_bytes)
        self._residency.evict(first, count, lock=True)
        self._memory.give_up(first)
        self.stats.shrunk += count
        return count * self._residency.layout.record_bytes

    @property
    def given_up(self) -> int:
        """Slots that wait for memory."""
        return self._memory.plan.base - self._memory.base_held

    def regrow(self, spare_bytes: int) -> int:
        """Take given-up slots again as far as the bytes reach; returns how many."""
        first, count = self._memory.grow(spare_bytes)
        if count:
            addresses = torch.tensor(self._memory.addresses(), dtype=torch.int64)
            self._residency.slot_address.copy_(addresses)
            self._residency.evict(first, count, lock=False)
            self.stats.regrown += count
        return count

    def _cancel_refill(self) -> None:
        """Give up what was not refilled yet: those slots are empty and free for admission."""
        waiting = self._refill
        if self._in_flight is not None:
            torch.cuda.current_stream(self._residency.device).wait_stream(self._copy_stream)
            _, first, keys = self._in_flight
            waiting = [*waiting, (first, keys)]
            self._in_flight = None
        self._refill = []
        for first, keys in waiting:
            self._residency.evict(first, len(keys), lock=False)

    def drain_refill(self, wait: Callable[[], None]) -> None:
        """Finish the whole refill now; `wait` synchronises. For tests and measurements."""
        while self._refill or self._in_flight is not None:
            wait()
            self.poll_refill()
