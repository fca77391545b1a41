"""A residency over made-up records, and the slow twin it is compared with after every step."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from cache_model import Decision, Ring, Step, apply, decide
from tier_cases import ROWS, Box, X

from glm53_kernels.cuda import COUNTERS, CudaKernels, StepStruct
from glm53_kernels.cuda_experts import AheadStruct
from glm53_server.moe.arena import ExpertArena, RecordLayout
from glm53_server.moe.residency import Residency
from glm53_server.moe.step_events import StepEvents

DEVICE = torch.device("cuda:0")
# A record of one word more than a copy chunk, one well below, and the tiny checkpoint's.
LAYOUTS = {
    "odd": RecordLayout(layers=3, experts=40, gate_bytes=16384, up_bytes=16384, down_bytes=16),
    "small": RecordLayout(layers=2, experts=288, gate_bytes=48, up_bytes=16, down_bytes=32),
    "tiny": RecordLayout(layers=3, experts=16, gate_bytes=12288, up_bytes=12288, down_bytes=12288),
}


def fill_random(layer: int, destination: torch.Tensor, pool: ThreadPoolExecutor) -> None:
    del pool
    generator = torch.Generator().manual_seed(layer)
    destination.copy_(
        torch.randint(0, 256, destination.shape, dtype=torch.uint8, generator=generator)
    )


class Rig:
    """Real kernels over an arena of random bytes; `ring` is the model of what they hold."""

    def __init__(self, kernels: CudaKernels, layout: RecordLayout, slots: int) -> None:
        self.layout = layout
        self.kernels = kernels
        self.arena = ExpertArena(layout, kernels, threads=2)
        self.arena.start_filling(fill_random, lambda done, total: None)
        for layer in range(layout.layers):
            self.arena.wait_layer(layer)
        self.tables = [
            tuple(torch.zeros(layout.experts, dtype=torch.int64, device=DEVICE) for _ in range(3))
            for _ in range(layout.layers)
        ]
        self.memory = torch.zeros(slots, layout.record_bytes, dtype=torch.uint8, device=DEVICE)
        tables = [(gate, up, down) for gate, up, down in self.tables]
        self.residency = Residency(self.arena, tables, kernels, slots, DEVICE)
        addresses = [self.memory[slot].data_ptr() for slot in range(slots)]
        self.residency.slot_address[:slots].copy_(torch.tensor(addresses, dtype=torch.int64))
        self.residency.rebuild(0, layout.layers)
        self.ring = Ring([None] * slots)
        self.counted: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self.ahead = Ahead(self)

    def close(self) -> None:
        torch.cuda.synchronize()
        self.ahead.close()
        self.arena.close()

    def slot_of(self, key: int) -> int | None:
        return self.ring.owner.index(key) if key in self.ring.owner else None

    def step(self, layer: int, picks: Sequence[int], admit_limit: int = 256) -> Decision:
        """One decode step on both; returns the model's decision."""
        ids = torch.tensor(list(picks), dtype=torch.int64, device=DEVICE)
        struct = self.residency.new_step(layer)
        struct.picks, struct.num_picks = ids.data_ptr(), len(picks)
        self.residency.admit_limit = admit_limit
        self.residency.decode_step(struct)
        torch.cuda.synchronize()
        return self.decided(layer, picks, admit_limit)

    @property
    def now(self) -> int:
        """The decode step that the next layer's step belongs to."""
        return self.counted["steps"] // self.layout.layers

    def asked(
        self, layer: int, picks: Sequence[int], limit: int, *, lookahead: bool = False
    ) -> Step:
        """The model's question for these picks."""
        experts = self.layout.experts
        return Step(layer, picks, self.now, experts, limit, lookahead=lookahead)

    def decided(
        self, layer: int, picks: Sequence[int], limit: int, share: float = 1.0, dither: float = 0.0
    ) -> Decision:
        """The model's half of a step."""
        asked = replace(self.asked(layer, picks, limit), gpu_share=share, dither=dither)
        decision = decide(self.ring, asked)
        apply(self.ring, decision, layer * self.layout.experts)
        admitted = len(decision.admissions)
        for name, count in (
            ("hits", decision.hits), ("misses", admitted + decision.left), ("admitted", admitted),
            ("evictions", decision.evicted), ("no_victim", decision.left),
            ("invalid", decision.invalid), ("steps", 1),
        ):  # fmt: skip
            self.counted[name] += count
        return decision

    def evict(self, first: int, count: int, *, lock: bool) -> None:
        self.residency.evict(first, count, lock=lock)
        for slot in range(first, first + count):
            self.ring.owner[slot] = None
            (self.ring.locked.add if lock else self.ring.locked.discard)(slot)

    def home(self, key: int) -> int:
        return self.arena.home + key * self.layout.record_bytes

    def record(self, key: int) -> torch.Tensor:
        start = key * self.layout.record_bytes
        return self.arena.bytes[start : start + self.layout.record_bytes]

    def expected_tables(self) -> list[list[list[int]]]:
        """[layer][gate, up, down][expert] addresses that residency implies."""
        where = {key: slot for slot, key in enumerate(self.ring.owner) if key is not None}
        result: list[list[list[int]]] = []
        for layer in range(self.layout.layers):
            keys = range(layer * self.layout.experts, (layer + 1) * self.layout.experts)
            starts = [
                self.memory[where[k]].data_ptr() if k in where else self.home(k) for k in keys
            ]
            result.append([[start + offset for start in starts] for offset in self.layout.offsets])
        return result

    def found_tables(self) -> list[list[list[int]]]:
        return [[table.tolist() for table in layer] for layer in self.tables]

    def check(self) -> None:
        """The device holds what the model says: maps, marks, hand, heat, counters, tables, bytes."""
        residency = self.residency
        owner = [-1 if key is None else key for key in self.ring.owner]
        assert residency.owner.tolist()[: len(owner)] == owner
        where = {key: slot for slot, key in enumerate(self.ring.owner) if key is not None}
        keys = range(self.layout.layers * self.layout.experts)
        assert residency.slot_of.tolist() == [where.get(key, -1) for key in keys]
        assert bits(residency._arrays["locked"]) == self.ring.locked
        assert residency._arrays["hand"].tolist() == [self.ring.hand]
        known = [self.ring.heat.known.get(key, (0, 0)) for key in keys]
        assert residency._arrays["heat"].tolist() == [heat for heat, _ in known]
        assert residency._arrays["last"].tolist() == [last for _, last in known]
        assert residency.heat().tolist() == [self.ring.heat.now(key, self.now) for key in keys]
        found = residency.counters()
        found["lookahead_waits"] = 0  # how often a copy is not done yet is nobody's to foresee
        assert {name: found[name] for name in self.counted} == self.counted
        assert self.found_tables() == self.expected_tables()
        for key, slot in where.items():
            assert torch.equal(self.memory[slot].cpu(), self.record(key)), f"slot {slot}"


def bits(words: torch.Tensor) -> set[int]:
    return {32 * w + b for w, word in enumerate(words.tolist()) for b in range(32) if word >> b & 1}


class PinnedBox(Box):
    """A mailbox that the GPU can read and write."""

    def __init__(self, kernels: CudaKernels, hidden: int) -> None:
        size = X + 2 * 4 * ROWS * hidden
        self._map = mmap.mmap(-1, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        super().__init__(size, hidden, np.frombuffer(self._map, np.uint8))
        self._kernels = kernels
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.alias = kernels.host_register(self._start, len(self._map))

    def close(self) -> None:
        torch.cuda.synchronize()
        self._kernels.host_unregister(self._start)


class Ahead:
    """Look-ahead steps of a rig, whole as the server makes them, or cut into decision, copies and the taking
    in; the ring knows a decided slot as locked and empty until its copy is taken in."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._under_way: list[tuple[int, int]] = []  # (key, slot)
        self._stream, self._events = torch.cuda.Stream(DEVICE), StepEvents(DEVICE)
        self._struct = AheadStruct(
            size=ctypes.sizeof(AheadStruct), stream=self._stream.cuda_stream,
            routed=self._events.routed.cuda_event, copied=self._events.copied.cuda_event,
            decided=self._events.decided.cuda_event,
        )  # fmt: skip
        self.sequence = 0
        self._area = mmap.mmap(-1, 2 * mmap.PAGESIZE)
        self._box = ctypes.addressof(ctypes.c_char.from_buffer(self._area))
        # The first page is the copy thread's box; nobody looks into the second.
        state, kernels = rig.residency.state, rig.kernels
        self._alias = state.copy_box = kernels.host_register(self._box, 2 * mmap.PAGESIZE)
        self._copier = kernels.copier_create(self._box, rig.layout.record_bytes, state.copied)

    def close(self) -> None:
        self._rig.kernels.copier_destroy(self._copier)
        self._rig.kernels.host_unregister(self._box)

    def __call__(
        self, layer: int, guess: Sequence[int], limit: int, in_use: Sequence[int] = ()
    ) -> Decision:
        """The best guesses of the next layer are copied and taken in, nothing counts as used, and slots of
        the layer before that are `in_use` stay."""
        step, *_kept = self._step(layer, guess, limit, in_use)
        self.enqueue(step)
        decision = self._model(layer, guess, limit, in_use)
        self.settle()
        self.taken_in()
        return decision

    def enqueue(self, step: StepStruct) -> None:
        """Decision and copies, beside the compute stream. Waits for nothing."""
        self.sequence = step.sequence = self.sequence + 1
        self._events.routed.record()
        self._events.copied.record()
        self._rig.kernels.look_ahead(self._rig.residency.state, None, step, self._struct)
        torch.cuda.current_stream().wait_event(self._events.decided)

    def decide(self, layer: int, guess: Sequence[int], limit: int) -> int:
        """Only the decision; returns its sequence number."""
        step, *_kept = self._step(layer, guess, limit, ())
        self.sequence = step.sequence = self.sequence + 1
        residency = self._rig.residency
        residency.state.copy_box = self._alias + mmap.PAGESIZE
        self._rig.kernels.cache_step(residency.state, step, residency.stream())
        residency.state.copy_box = self._alias
        torch.cuda.synchronize()
        if not self._under_way:
            self._model(layer, guess, limit, ())
        assert self.pending() == self._under_way
        return self.sequence

    def bring(self, sequence: int) -> None:
        """Only the copies of such a decision, if it was the last that decided something."""
        residency = self._rig.residency
        if residency._arrays["pending"][1] == sequence:
            for key, slot in self.pending():
                self._rig.memory[slot].copy_(self._rig.record(key))
            residency._arrays["copied"][0] = sequence
        torch.cuda.synchronize()

    def settle(self) -> None:
        """Take in what is done by now; the copy thread is waited for."""
        torch.cuda.synchronize()
        assert self._rig.kernels.copier_drain(self._copier, 2000)
        self._rig.kernels.settle(self._rig.residency.state, self._rig.residency.stream())
        torch.cuda.synchronize()

    def taken_in(self) -> None:
        """The model's half of a settle, or of a step that found the copies done."""
        ring = self._rig.ring
        for key, slot in self._under_way:
            ring.locked.discard(slot)
            if key not in ring.owner:
                ring.owner[slot] = key
        self._rig.counted["lookahead"] += len(self._under_way)
        self._under_way = []
        assert self.pending() == []

    def pending(self) -> list[tuple[int, int]]:
        """What the device says is under way."""
        count, _, *pairs = self._rig.residency._arrays["pending"].tolist()
        return list(zip(pairs[0::2], pairs[1::2], strict=True))[:count]

    def _step(
        self, layer: int, guess: Sequence[int], limit: int, in_use: Sequence[int]
    ) -> tuple[StepStruct, torch.Tensor, torch.Tensor]:
        """The step, and what it points at."""
        ids = torch.tensor(list(guess), dtype=torch.int64, device=DEVICE)
        used = torch.tensor(list(in_use), dtype=torch.int64, device=DEVICE)
        step = self._rig.residency.new_step(layer)
        step.lookahead, step.admit_limit = 1, limit
        step.picks, step.num_picks = ids.data_ptr(), len(guess)
        step.protected_picks, step.num_protected = used.data_ptr(), len(in_use)
        return step, ids, used

    def _model(
        self, layer: int, guess: Sequence[int], limit: int, in_use: Sequence[int]
    ) -> Decision:
        rig, ring = self._rig, self._rig.ring
        before = (layer - 1) * rig.layout.experts
        slots = {rig.slot_of(before + pick) for pick in in_use} - {None} - ring.locked
        ring.locked |= slots
        decision = decide(ring, rig.asked(layer, guess, limit, lookahead=True))
        ring.locked -= slots
        for expert, slot, _ in decision.admissions:
            ring.owner[slot] = None
            ring.locked.add(slot)
            self._under_way.append((layer * rig.layout.experts + expert, slot))
        return decision
