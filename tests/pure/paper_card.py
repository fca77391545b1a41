"""A card of paper: it knows which work of every stream is done before which, and what may not be beside what."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from glm53_kernels.cuda import CudaKernelError, StepStruct
from glm53_kernels.cuda_experts import AheadStruct, ForkStruct
from glm53_kernels.cuda_router import RouterStruct
from glm53_server.moe.arena import RecordLayout
from glm53_server.moe.cpu_tier import CpuLane
from glm53_server.moe.expert_shape import ExpertShape
from glm53_server.moe.gpu_experts import ExpertPointers, GpuExperts
from glm53_server.moe.layer import DECODE_ROWS, ExpertTiers
from glm53_server.moe.lookahead import GuessOverride, Lookahead
from glm53_server.moe.residency import Residency
from glm53_server.moe.split import LaneCosts, SplitState
from glm53_server.moe.step_events import StepEvents

LAYERS, EXPERTS, PICKS, HIDDEN, SLOTS = 5, 16, 8, 128, 6
CPU = torch.device("cpu")
LAYER_STEP = Path(__file__).resolve().parents[2] / "kernels/csrc/cuda/layer_step.cu"
COMPUTE = 1  # the first stream that is made
Clock = dict[int, int]


class Stream:
    """Knows which work of every stream is done before its next one: a vector clock. What the host has waited
    for is done before everything that it enqueues later."""

    made: ClassVar[list[Stream]]
    host: ClassVar[Clock]

    def __init__(self, *_: object) -> None:
        self._seen: Clock = {}
        Stream.made.append(self)
        self.cuda_stream = len(Stream.made)

    @property
    def seen(self) -> Clock:
        return later(self._seen, Stream.host)

    def work(self) -> tuple[int, int]:
        """Enqueue one piece of work: its place in the clock."""
        self._seen = self.seen
        count = self._seen[self.cuda_stream] = self._seen.get(self.cuda_stream, 0) + 1
        return self.cuda_stream, count

    def wait_event(self, event: Event) -> None:
        self._seen = later(self._seen, event.seen)

    def wait_stream(self, other: Stream) -> None:
        self._seen = later(self._seen, other.seen)

    def synchronize(self) -> None:
        Stream.host = later(Stream.host, self._seen)


class Event:
    made: ClassVar[list[Event]]

    def __init__(self, **_: object) -> None:
        self.seen: Clock = {}
        self.cuda_event = 0  # none before it is recorded

    def record(self, stream: Stream | None = None) -> None:
        if not self.cuda_event:
            Event.made.append(self)
            self.cuda_event = len(Event.made)
        self.seen = (stream or Stream.made[COMPUTE - 1]).seen


def recorded(stream: Stream) -> Event:
    event = Event()
    event.record(stream)
    return event


def stream_of(handle: int | None) -> Stream:
    assert handle
    return Stream.made[handle - 1]


def later(one: Clock, other: Clock) -> Clock:
    return {n: max(one.get(n, 0), other.get(n, 0)) for n in {*one, *other}}


def operations(function: str) -> list[tuple[str, list[str]]]:
    """What a function of layer_step.cu enqueues, in order: what, and the last name of each argument."""
    source = re.sub(r"//.*", "", LAYER_STEP.read_text(encoding="utf-8"))
    found = re.search(rf"\bint {function}\([^)]*\) {{\n(.*?)\n}}", source, re.DOTALL)
    assert found is not None, function
    calls = re.findall(r"\b((?:wait|record|glm53)\w*)\(([^()]*)\)", found[1])
    return [
        (name, [re.split(r"\W", part)[-1] for part in given.split(",")]) for name, given in calls
    ]


def fields(struct: ctypes.Structure) -> dict[str, Any]:
    return {name: getattr(struct, name) for name, *_ in struct._fields_}


# Kinds of work and what comes before them, as Card says.
KERNELS = {
    "glm53_guess": ("guess", "route"),
    "glm53_gather": ("gather", "step"),
    "glm53_experts_run": ("kernels", "step"),
}


class Broken(Exception):
    """A forward pass that ends in its middle."""


class Card:
    """Residency's kernels. Work is of some kinds, comes after the last work of these, and may name others.

    change    a decision, settling, eviction: what writes residency, never two of them beside each other
    step      a layer's own decision: it reads the inputs, and overwrites what the kinds below read
    gather    its copies
    kernels   what reads the slots that it decided
    combine   what adds up
    post      a look-ahead's decision alone
    bring     its copies: only what gives slots away, or says that all has arrived, comes after them

    What the calls for whole layers enqueue is read from layer_step.cu.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.ahead: list[StepStruct] = []  # all look-aheads
        self.until_break = 0  # so many calls; 0: none breaks off
        self.until_refusal = 0  # so many operations of a native call; 0: the driver refuses none
        self._last: dict[str, tuple[int, int, str]] = {}
        names = ("glm53_layer_begin", "glm53_layer_end", "glm53_look_ahead")
        self._native = {name: operations(name) for name in names}
        self._copier = Stream()
        self.copier_broken = False
        self._locked: set[int] = set()
        self._layer = self._posted = self._answered = -1

    def called(self) -> None:
        """Something is called that may break off."""
        self.until_break -= 1
        if self.until_break == 0:
            raise Broken

    def run(self, stream: int, what: str, kinds: str, after: str = "") -> None:
        """Enqueue one piece of work."""
        clock = stream_of(stream)
        for kind in f"{kinds} {after}".split():
            assert self.passed(clock.seen, kind), f"{what} may overtake {self._last[kind][2]}"
        place = (*clock.work(), what)
        self._last |= dict.fromkeys(kinds.split(), place)
        self.log.append(what)

    def passed(self, seen: Clock, kind: str) -> bool:
        """Whether the last work of that kind is done for whoever has seen so much."""
        stream, count, _ = self._last.get(kind, (0, 0, ""))
        return seen.get(stream, 0) >= count

    def host_register(self, address: int, size_bytes: int) -> int:
        return address

    def host_unregister(self, address: int) -> None: ...

    def experts_prepare(self, model: Any) -> None:
        assert model.size == ctypes.sizeof(model)

    def cache_step(self, state: Any, step: StepStruct, stream: int) -> None:
        self.called()
        self._decide(step, stream)

    def gather(self, state: Any, blocks: int, stream: int) -> None:
        self.called()
        self.run(stream, f"gather {self._layer}", "gather", "step")

    def mailbox_wait(self, step: StepStruct, stream: int) -> None:
        self.called()
        self._answer(step, stream)

    def combine(self, state: Any, step: StepStruct, final: int, stream: int) -> None:
        self.called()
        self._combine(step, stream)

    def settle(self, state: Any, stream: int) -> None:
        self.called()
        for kind in ("change", "gather", "kernels", "bring"):
            assert self.passed(Stream.host, kind), f"the host may give away what {kind} still uses"
        self.run(stream, "settle", "change", "gather kernels bring")

    def slots_evict(self, state: Any, first: int, count: int, *, lock: bool, stream: int) -> None:
        self.called()
        slots = set(range(first, first + count))
        free = slots <= self._locked  # nothing is copied into a locked slot
        self.run(stream, "evict", "change", "gather kernels" + " bring" * (not free))
        self._locked = self._locked | slots if lock else self._locked - slots

    def copier_create(self, box: int, record_bytes: int, done: int) -> int:
        return self._copier.cuda_stream

    def copier_failed(self, copier: int) -> bool:
        return self.copier_broken

    def copier_drain(self, copier: int, limit_ms: int) -> bool:
        self.called()
        assert self.passed(Stream.host, "post"), "its thread may not have seen the last post"
        stream_of(copier).synchronize()
        return True

    def copier_destroy(self, copier: int) -> None: ...

    def slots_adopt(self, state: Any, first: int, count: int, keys: int, stream: int) -> None:
        self.called()
        self.run(stream, "adopt", "change", "gather kernels")

    def layer_begin(
        self, state: Any, model: Any, step: StepStruct, fork: ForkStruct, stream: int
    ) -> None:
        self.called()
        self._enqueue("glm53_layer_begin", fields(fork) | {"step": step, "stream": stream})

    def layer_end(
        self, state: Any, model: Any, step: StepStruct, fork: ForkStruct, final: int, stream: int
    ) -> None:  # fmt: skip
        self.called()
        self._enqueue("glm53_layer_end", fields(fork) | {"step": step, "stream": stream})

    def look_ahead(self, state: Any, router: Any, step: StepStruct, ahead: AheadStruct) -> None:
        self.called()
        assert step.lookahead
        assert step.layer == self._layer + 1, "a step may wait for copies that are enqueued later"
        self.ahead.append(StepStruct.from_buffer_copy(step))
        self._enqueue("glm53_look_ahead", fields(ahead) | {"router": router, "step": step})

    def _enqueue(self, function: str, given: dict[str, Any]) -> None:
        """Go through what a native function enqueues; given: what it is given, by the names it has there."""
        for name, arguments in self._native[function]:
            self.until_refusal -= 1
            if self.until_refusal == 0:
                raise CudaKernelError(f"{name}: out of memory")
            values = [given.get(argument) for argument in arguments]
            if name == "record":
                if values[0] is not None:
                    Event.made[values[0] - 1].record(stream_of(values[1]))
            elif name == "wait":
                stream_of(values[0]).wait_event(Event.made[(values[1] or 0) - 1])
            else:
                self._kernel(name, values[-1] or 0, given, arriving="kArriving" in arguments)

    def _kernel(self, name: str, stream: int, given: dict[str, Any], *, arriving: bool) -> None:
        step: StepStruct = given["step"]
        if name == "glm53_cache_step":
            self._decide(step, stream)
        elif name == "glm53_mailbox_wait":
            self._answer(step, stream)
        elif name == "glm53_experts_combine":
            self._combine(step, stream)
        elif name != "glm53_guess" or given["router"] is not None:
            kind, after = KERNELS[name]
            for _ in range(given["repeats"] if kind == "gather" else 1):
                self.run(stream, f"{kind} {step.layer}", kind, after + " gather" * arriving)

    def _decide(self, step: StepStruct, stream: int) -> None:
        if step.lookahead:
            what = f"look ahead {step.layer}"
            self.run(stream, what, "change post", "step route gather" + " guess" * (not step.picks))
            # Its thread finds what is decided, and waits for nothing else.
            self._copier.wait_event(recorded(stream_of(stream)))
            self.run(self._copier.cuda_stream, f"bring {step.layer}", "bring", "change")
            return
        self.run(stream, f"step {step.layer}", "change step", "route gather kernels combine")
        self._layer, self._posted = step.layer, step.sequence

    def _answer(self, step: StepStruct, stream: int) -> None:
        assert self._posted == step.sequence, "nobody would ever answer"
        self._answered = step.sequence
        self.run(stream, f"answer {step.layer}", "answer", "step")

    def _combine(self, step: StepStruct, stream: int) -> None:
        assert self._answered == step.sequence, "the CPU may not have answered"
        self.run(stream, f"combine {step.layer}", "combine", "step gather kernels answer")


class Stager:
    """Takes the last slots for a prompt and gives them back in a decode step."""

    capacity, given_up = 1, 0

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self.in_prefill = self.passing = False

    def begin_pass(self, *, skip_last: bool) -> None:
        del skip_last
        if not self.in_prefill:
            self._residency.evict(SLOTS - 2, 2, lock=True)
        self.in_prefill = self.passing = True

    def end_pass(self) -> None:
        self.passing = False

    def leave(self) -> None:
        self._residency.evict(SLOTS - 2, 2, lock=False)
        self.in_prefill = False

    def poll_refill(self) -> None:
        """Some experts that it copied back into its own slots have arrived."""
        self._residency.adopt(0, torch.zeros(1, dtype=torch.int32))

    def before_layer(self, layer: int) -> None: ...
    def after_layer(self) -> None: ...


class Stage:
    """The real objects of a decode step over the card."""

    def __init__(
        self, card: Card, mode: str, limit: int, guess: GuessOverride | None = None, *, routers: bool = True
    ) -> None:  # fmt: skip
        everything: Any = card
        self.card = card
        self.events = StepEvents(CPU)
        table = torch.zeros(EXPERTS, dtype=torch.int64)
        tables = [(table, table, table)] * LAYERS
        arena: Any = SimpleNamespace(home=0, layout=RecordLayout(LAYERS, EXPERTS, 64, 64, 64))
        self.residency = Residency(arena, tables, everything, SLOTS, CPU)
        shape = ExpertShape(HIDDEN, HIDDEN, (3, 3, 3), 10.0, PICKS)
        self.lane = None
        if mode != "exact":
            pool: Any = None
            split = SplitState(LaneCosts(1e-3, 1e-3, 0.0), 0.5, frozen=True)
            self.lane = CpuLane(arena, [], shape, pool, everything, split)
            self.lane._sequence = 0xFFFFFF80  # the numbers go round
        if self.lane is not None and mode == "own kernels":
            layers = [ExpertPointers(three, three, three) for three in tables]
            self.lane.experts = GpuExperts(self.residency, layers, shape, self.events)
        stager: Any = Stager(self.residency)
        self.tiers = ExpertTiers(self.residency, stager, stage_rows=64, cpu_lane=self.lane)
        gates: Any = SimpleNamespace(structs=[RouterStruct() for _ in range(LAYERS)])
        self.ahead = Lookahead(
            self.residency, gates if routers else None, limit, self.events, guess
        )
        self.tiers.lookahead = self.ahead
        # Stock's allocator gives the same few addresses again and again, whatever the rows.
        self.inputs = [
            (torch.arange(PICKS).repeat(100, 1), torch.ones(100, PICKS).half(), torch.zeros(100, HIDDEN).half())
            for _ in range(2)
        ]  # fmt: skip

    def forward(
        self, rows: int, turns: tuple[int, int, int] = (0, 0, 0), *, cache_only: bool = False
    ) -> None:
        """As stock makes it: what it enqueues itself is on the compute stream too. turns: which memory its
        picks, weights and rows lie in."""
        card, tiers, lane = self.card, self.tiers, self.lane
        picks, weights, x = (self.inputs[turn][part][:rows] for part, turn in enumerate(turns))
        tiers.on_pass(rows, cache_only=cache_only)
        stock = lane is None or lane.experts is None or not lane.enabled or cache_only or rows > DECODE_ROWS  # fmt: skip
        for layer in range(LAYERS):
            card.called()
            card.run(COMPUTE, f"route {layer}", "route", "step kernels")
            _, used = tiers.on_route(layer, picks, weights, x)
            assert (used is weights) is stock
            card.called()
            if stock:
                after = "step gather" if rows <= DECODE_ROWS else "change"
                card.run(COMPUTE, f"kernels {layer}", "kernels", after)
            card.called()
            tiers.on_combine(layer, torch.zeros(rows, HIDDEN))

    def break_off(self, after: int) -> None:
        """A pass of one row that ends at its so many-th call."""
        self.card.until_break = after
        try:
            self.forward(1)
        except Broken:
            return
        finally:
            self.card.until_break = 0
