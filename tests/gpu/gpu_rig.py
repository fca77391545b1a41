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
from glm53_server.moe.arena import ExpertArena, RecordLayout
from glm53_server.moe.residency import Residency

DEVICE = torch.device("cuda:0")


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
        self.copier: CopyThread | None = None

    def close(self) -> None:
        torch.cuda.synchronize()
        if self.copier is not None:
            self.copier.close()
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

    def ahead(
        self, layer: int, guess: Sequence[int], limit: int, in_use: Sequence[int] = ()
    ) -> Decision:
        """A look-ahead step: the best guesses of the next layer are copied by the copy thread, nothing
        counts as used, and slots of the layer before that are `in_use` stay."""
        if self.copier is None:
            self.copier = CopyThread(self.kernels, self.residency)
        ids = torch.tensor(list(guess), dtype=torch.int64, device=DEVICE)
        used = torch.tensor(list(in_use), dtype=torch.int64, device=DEVICE)
        struct = self.residency.new_step(layer)
        struct.picks, struct.num_picks = ids.data_ptr(), len(guess)
        struct.protected_picks, struct.num_protected = used.data_ptr(), len(in_use)
        struct.lookahead, struct.admit_limit = 1, limit
        self.copier.post(struct)
        self.copier.settle()
        before = (layer - 1) * self.layout.experts
        slots = {self.slot_of(before + pick) for pick in in_use} - {None} - self.ring.locked
        self.ring.locked |= slots
        decision = decide(self.ring, self.asked(layer, guess, limit, lookahead=True))
        self.ring.locked -= slots
        apply(self.ring, decision, layer * self.layout.experts)
        self.counted["lookahead"] += len(decision.admissions)
        return decision

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
        found["lookahead_waits"] = (
            0  # how often the host thread lost the race is nobody's to foresee
        )
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


class CopyThread:
    """The library's copy thread over a copy box of its own."""

    def __init__(self, kernels: CudaKernels, residency: Residency) -> None:
        self._kernels = kernels
        self._residency = residency
        self._map = mmap.mmap(-1, mmap.PAGESIZE)
        self._box = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        residency.state.copy_box = kernels.host_register(self._box, len(self._map))
        self._copier = kernels.copier_create(self._box, residency.layout.record_bytes)
        self._sequence = 0

    def post(self, step: StepStruct, *, wait: bool = True) -> None:
        """Decide the step, and wait for the decision."""
        self._sequence += 1
        step.sequence = self._sequence
        self._kernels.cache_step(self._residency.state, step, self._residency.stream())
        if wait:
            torch.cuda.synchronize()

    def settle(self) -> None:
        """Wait for the copies and take them in."""
        self._kernels.copier_drain(self._copier, 2000)
        self._kernels.settle(self._residency.state, self._residency.stream())
        torch.cuda.synchronize()

    @property
    def failed(self) -> bool:
        return self._kernels.copier_failed(self._copier)

    def close(self) -> None:
        self._residency.state.copy_box = 0
        self._kernels.copier_destroy(self._copier)
        self._kernels.host_unregister(self._box)
