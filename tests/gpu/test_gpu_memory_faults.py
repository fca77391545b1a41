"""Memory that other processes take, in VRAM and in host RAM: a typed error or a smaller cache, then work."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import torch
from gpu_engine_cases import PROMPTS, VOCAB, collect, loaded, plan, request, run, works
from gpu_exact import random_ids
from gpu_harness import generator_of, greedy
from gpu_rig import DEVICE, Rig

from glm53_kernels.cuda import CudaKernelError, CudaKernels
from glm53_server.engine import exl3
from glm53_server.engine.base import EngineState, Failed
from glm53_server.engine.exl3 import Exl3Engine
from glm53_server.engine.exl3_model import LoadedModel
from glm53_server.launch import LaunchError, load_engine
from glm53_server.moe.arena import RecordLayout
from glm53_server.moe.prefill import PrefillStager
from glm53_server.moe.pressure import is_out_of_memory, make_room, take_back
from glm53_server.moe.slots import SlotMemory, SlotPlan
from glm53ctl.errors import ChildExit
from glm53ctl.plan import CpuTierPlan, Mode

HERE = Path(__file__).parent
FULL = 64  # MiB: what a full card may still have free


@pytest.fixture(scope="module")
def expected(stock: LoadedModel) -> list[int]:
    """Stock's greedy answer to the first prompt."""
    return greedy(generator_of(stock, 4, 2048), PROMPTS[:1], 40)[0][0]


class Hog:
    """gpu_hog.py: another process that takes the rest of the card, and gives it back."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "gpu_hog.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._hear("ready")

    def _hear(self, word: str) -> int:
        assert self.process.stdout is not None
        said = self.process.stdout.readline().split()
        assert said[:1] == [word], f"the hog said {said}"
        return int(said[1])

    def _tell(self, word: str) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self._hear("done")

    @contextmanager
    def holding(self) -> Iterator[None]:
        """The card is full meanwhile."""
        gc.collect()
        torch.cuda.empty_cache()  # what we hold without need would not be refused to us
        assert self._tell("take") < FULL, "the hog could not take the card"
        try:
            yield
        finally:
            self._tell("free")


@pytest.fixture(scope="module")
def hog() -> Iterator[Hog]:
    made = Hog()
    yield made
    made.process.kill()
    made.process.communicate()


def check_refused(engine: Exl3Engine, name: str) -> None:
    """A request that needs some hundred MiB more than there are: its scores take 12,000 rows of logits."""
    asked = request(name, random_ids(VOCAB, 12_000, 8), 1, prompt_logprobs_from=0)
    events = run(collect(engine, asked))
    assert isinstance(events[-1], Failed), "a full card refused nothing"
    assert (events[-1].error.status, events[-1].error.code) == (503, "out_of_vram")
    assert engine.state is EngineState.READY


def test_vram_is_taken_before_the_first_request_and_between_two(
    hog: Hog, expected: list[int]
) -> None:
    for engine in loaded(plan(Mode.EXACT)):
        for name in ("first", "between"):
            with hog.holding():
                check_refused(engine, name)
            assert works(engine) == expected
        (cache,) = cast("list[dict[str, Any]]", engine.stats()["expert_cache"])
        assert cache["elastic"]["shrunk"] > 0
        assert cache["elastic"]["given_up"] == 0


class Chunks:
    """Slots of 8 MiB in the chunks of a real cache, over made-up records; no model."""

    layout = RecordLayout(
        layers=2, experts=48, gate_bytes=2 << 20, up_bytes=2 << 20, down_bytes=4 << 20
    )

    def __init__(self, kernels: CudaKernels) -> None:
        self.rig = Rig(kernels, self.layout, 80)
        memory = SlotMemory(SlotPlan(80, 0, 0, 32), self.layout.record_bytes, DEVICE)
        residency = self.rig.residency
        residency.slot_address.copy_(torch.tensor(memory.addresses(), dtype=torch.int64))
        self.rig.memory = torch.empty(0)
        self.stager = PrefillStager(residency, memory, reserve_bytes=300 << 20)

    def use(self) -> int:
        """Admit experts of both layers, four times; returns how many slots hold one."""
        residency = self.rig.residency
        for layer in (0, 1) * 4:
            for first in range(0, 48, 8):
                ids = torch.arange(first, first + 8, dtype=torch.int64, device=DEVICE)
                step = residency.new_step(layer)
                step.picks, step.num_picks = ids.data_ptr(), 8
                residency.decode_step(step)
        assert residency.verify() == 0
        return int((residency.owner >= 0).sum())


def test_the_cache_shrinks_while_another_process_stays_and_grows_when_it_leaves(
    hog: Hog, kernels: CudaKernels
) -> None:
    chunks = Chunks(kernels)
    try:
        assert chunks.use() == 80
        with hog.holding():
            with pytest.raises(torch.OutOfMemoryError) as refused:
                torch.empty(200 << 20, dtype=torch.uint8, device=DEVICE)
            assert is_out_of_memory(refused.value)
            assert make_room(chunks.stager, DEVICE) == 48 * chunks.layout.record_bytes
            assert torch.cuda.mem_get_info()[0] >= 300 << 20
            work = torch.empty(200 << 20, dtype=torch.uint8, device=DEVICE)
            assert chunks.stager.given_up == 48
            assert chunks.use() == 32
            assert take_back(chunks.stager, DEVICE) == 0, "there is no room yet"
            del work
        assert take_back(chunks.stager, DEVICE) == 48
        assert chunks.stager.given_up == 0
        assert chunks.use() == 80
        stats = chunks.stager.stats
        assert (stats.shrunk, stats.regrown) == (48, 48)
    finally:
        chunks.rig.close()


class Books(CudaKernels):
    """The real library; notes what is pinned and, after `room` registrations, has the driver refuse."""

    made: ClassVar[list[Books]] = []  # emptied by the fixture

    def __init__(self, room: int = 1 << 30) -> None:
        super().__init__()
        self.pinned: set[int] = set()
        self.room = room
        Books.made.append(self)

    def host_register(self, address: int, size_bytes: int) -> int:
        blocker = None
        if len(self.pinned) >= self.room:
            blocker = address + size_bytes - (4 << 10)
            super().host_register(blocker, 4 << 10)  # the driver pins no page twice
        try:
            alias = super().host_register(address, size_bytes)
        finally:
            if blocker is not None:
                super().host_unregister(blocker)
        self.pinned.add(address)
        return alias

    def host_unregister(self, address: int) -> None:
        super().host_unregister(address)
        self.pinned.discard(address)


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Books]]:
    monkeypatch.setattr(exl3, "CudaKernels", Books)
    Books.made.clear()
    yield Books.made
    Books.made.clear()


def refusal(mode: Mode, tier: CpuTierPlan | None = None) -> LaunchError:
    try:
        load_engine(plan(mode, tier), lambda phase, done, total: None)
    except LaunchError as err:
        told = err
    else:
        raise AssertionError("it was loaded")
    told.__traceback__ = told.__cause__ = told.__context__ = None  # they keep what was loaded
    gc.collect()
    torch.cuda.empty_cache()
    return told


def test_vram_is_taken_before_the_load(hog: Hog, books: list[Books], expected: list[int]) -> None:
    with hog.holding():
        err = refusal(Mode.EXACT)
    assert err.code is ChildExit.NO_MEMORY
    assert err.error_id in {"MEM-002", "MEM-003"}  # registering pages takes some VRAM too
    assert err.hint is not None
    assert books[0].pinned == set(), "a load that failed left memory pinned"
    for engine in loaded(plan(Mode.EXACT)):
        assert works(engine) == expected


def test_pinning_is_refused_midway(
    books: list[Books], monkeypatch: pytest.MonkeyPatch, expected: list[int]
) -> None:
    monkeypatch.setattr(exl3, "CudaKernels", lambda: Books(room=1))
    err = refusal(Mode.EXACT)
    assert (err.code, err.error_id) == (ChildExit.NO_MEMORY, "MEM-002")
    assert "pinning stopped at" in err.message
    assert err.hint is not None
    assert books[0].pinned == set()
    monkeypatch.setattr(exl3, "CudaKernels", CudaKernels)
    for engine in loaded(plan(Mode.EXACT)):
        assert works(engine) == expected


def test_the_driver_refuses_a_page_twice(kernels: CudaKernels) -> None:
    """What Books relies on."""
    memory = torch.empty(4 << 20, dtype=torch.uint8)
    start = -(-memory.data_ptr() // 4096) * 4096
    kernels.host_register(start, 1 << 20)
    try:
        with pytest.raises(CudaKernelError, match="cudaHostRegister"):
            kernels.host_register(start, 2 << 20)
    finally:
        kernels.host_unregister(start)
