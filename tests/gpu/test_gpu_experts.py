"""Fast mode's own expert kernels against the float64 oracle: residents, arrived ones, and the CPU's sum."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import exl3_oracle as oracle
import numpy as np
import pytest
import torch
from gpu_rig import DEVICE, PinnedBox, Rig
from native_cases import relative_rms
from tier_cases import EXPERT, NUM_PICKS, PICKS, ROW

from glm53_kernels.cuda import CudaKernelError, CudaKernels
from glm53_server.moe.arena import RecordLayout
from glm53_server.moe.expert_shape import ExpertShape
from glm53_server.moe.gpu_experts import ExpertPointers, GpuExperts
from glm53_server.moe.step_events import StepEvents

EXPERTS, HIDDEN, WIDE, SLOTS, PER_ROW = 12, 384, 640, 6, 4
# Inputs and activations are fp16, as in stock's kernels: their rounding is 2e-4 of the result.
TOLERANCE = 1e-3


@dataclass
class Bench:
    """A rig whose records are real experts, and everything around a step of layer 1."""

    rig: Rig
    experts: list[oracle.Expert]
    gpu: GpuExperts
    box: PinnedBox
    limit: float
    kept: list[torch.Tensor]
    sequence: int = 0

    def step(self, picks: list[list[int]], share: float, scale: float = 1.0) -> float:
        """One whole step of random inputs; returns the relative error of what it added."""
        rows, per_row = len(picks), len(picks[0])
        ids = torch.tensor(picks, dtype=torch.int64, device=DEVICE)
        x = (scale * torch.randn(rows, HIDDEN, device=DEVICE)).half()
        return self.run(ids, x, torch.rand(rows, per_row, device=DEVICE).half() + 0.05, share)

    def run(self, ids: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, share: float) -> float:
        """One whole step, the CPU's answer included."""
        rows, per_row = ids.shape
        picks, wanted = ids.tolist(), weights.double().cpu().numpy()
        self.sequence = self.sequence % 0xFFFFFFFF + 1
        step = self.rig.residency.new_step(1)
        step.picks, step.num_picks, step.per_row = ids.data_ptr(), ids.numel(), per_row
        step.x, step.weights, step.hidden = x.data_ptr(), weights.data_ptr(), HIDDEN
        step.mailbox, step.sequence = self.box.alias, self.sequence
        step.gpu_share, step.dither, step.runs = share, 0.0, self.gpu.runs
        final = torch.randn(rows, HIDDEN, device=DEVICE)
        before = final.clone()
        self.gpu.begin(step, (x, ids, weights))
        torch.cuda.synchronize()
        count = int(self.box.word(NUM_PICKS)[0]) if int(self.box.word(0)[0]) == self.sequence else 0
        posted = set(zip(self.box.word(ROW, np.int32, PICKS)[:count].tolist(),
                         self.box.word(EXPERT, np.int32, PICKS)[:count].tolist(), strict=True))  # fmt: skip
        answer = np.random.default_rng(self.sequence).normal(size=(rows, HIDDEN)).astype(np.float32)
        self.box.out(rows)[:] = answer
        self.box.empty(self.sequence)
        self.gpu.end(step, final)
        torch.cuda.synchronize()
        inputs = x.double().cpu().numpy()
        expected = answer.astype(np.float64) if posted else np.zeros((rows, HIDDEN))
        for row, chosen in enumerate(picks):
            for j, pick in enumerate(chosen):
                if 0 <= pick < EXPERTS and (row, pick) not in posted:
                    y = oracle.expert_forward(self.experts[pick], inputs[row : row + 1], self.limit)
                    expected[row] += wanted[row, j] * y[0]
        added = (final.double() - before.double()).cpu().numpy()
        if not np.any(expected):
            assert not np.any(added)
            return 0.0
        return relative_rms(added, expected)


@pytest.fixture
def make_bench(kernels: CudaKernels) -> Iterator:
    made: list[Bench] = []

    def make(bits: tuple[int, int], limit: float = 10.0) -> Bench:
        gate_bytes, down_bytes = HIDDEN * WIDE * bits[0] // 8, HIDDEN * WIDE * bits[1] // 8
        rig = Rig(kernels, RecordLayout(2, EXPERTS, gate_bytes, gate_bytes, down_bytes), SLOTS)
        rng = np.random.default_rng(bits[0])
        experts, kept = [], []
        for number in range(EXPERTS):
            expert = oracle.random_expert(rng, HIDDEN, WIDE, (bits[0], bits[0], bits[1]))
            record = rig.record(EXPERTS + number).numpy()
            parts = [linear.trellis.view(np.uint8).ravel() for linear in expert]
            record[:] = np.concatenate(parts)
            experts.append(expert)

        def pointers(part: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            suh = [torch.from_numpy(e[part].suh).to(DEVICE) for e in experts]
            svh = [torch.from_numpy(e[part].svh).to(DEVICE) for e in experts]
            kept.extend((*suh, *svh))
            addresses = [torch.tensor([t.data_ptr() for t in some], device=DEVICE) for some in (suh, svh)]  # fmt: skip
            return rig.tables[1][part], *addresses

        layer = ExpertPointers(pointers(0), pointers(1), pointers(2))
        shape = ExpertShape(HIDDEN, WIDE, (bits[0], bits[0], bits[1]), limit, PER_ROW)
        gpu = GpuExperts(rig.residency, [layer, layer], shape, StepEvents(DEVICE))
        made.append(Bench(rig, experts, gpu, PinnedBox(kernels, HIDDEN), limit, kept))
        return made[-1]

    yield make
    for bench in made:
        bench.box.close()
        bench.rig.close()


@pytest.mark.parametrize("bits", [(1, 8), (2, 7), (3, 3), (4, 6), (5, 5), (6, 4), (7, 2), (8, 1)])
def test_residents_and_arrivals_agree_with_float64(make_bench, bits: tuple[int, int]) -> None:
    bench = make_bench(bits)
    assert bench.step([[1, 2, 3, 4]], share=1.0) < TOLERANCE  # all arrive
    assert bench.step([[1, 2, 3, 4]], share=1.0) < TOLERANCE  # all are there
    assert bench.step([[4, 9, 1, 7]], share=1.0) < TOLERANCE  # two of each
    assert bench.step([[4, 5, 1, 6]], share=0.5) < TOLERANCE  # one arrives, one is the CPU's


def test_rows_share_experts_in_any_way(make_bench) -> None:
    bench, chance = make_bench((3, 3)), random.Random(2)
    for rows in (1, 2, 3, 4, 5, 6, 7, 8) * 3:
        picks = [chance.sample(range(EXPERTS), PER_ROW) for _ in range(rows)]
        assert bench.step(picks, share=chance.choice([0.0, 0.3, 1.0])) < TOLERANCE
    assert bench.step([[5, 5, 5, 5], [5, 5, -1, EXPERTS]], share=1.0) < TOLERANCE
    assert bench.step([[-1, EXPERTS, -7, 999]], share=1.0) == 0.0
    assert bench.rig.residency.verify() == 0


def test_values_beyond_the_clamp(make_bench) -> None:
    clamped, free = make_bench((3, 3), limit=10.0), make_bench((3, 3), limit=0.0)
    picks = [[1, 2, 3, 4], [4, 3, 2, 0]]
    assert clamped.step(picks, share=1.0, scale=12.0) < TOLERANCE
    assert free.step(picks, share=1.0, scale=12.0) < TOLERANCE


def test_results_do_not_depend_on_timing(make_bench) -> None:
    """The same step many times: every bit the same, whoever finishes last."""
    bench = make_bench((3, 3))
    ids = torch.tensor([[1, 2, 3, 4], [3, 4, 5, 1]], dtype=torch.int64, device=DEVICE)
    x = torch.randn(2, HIDDEN, device=DEVICE).half()
    weights = torch.full((2, PER_ROW), 0.3, device=DEVICE).half()
    seen: list[torch.Tensor] = []
    for sequence in range(100, 140):
        step = bench.rig.residency.new_step(1)
        step.picks, step.num_picks, step.per_row = ids.data_ptr(), 8, PER_ROW
        step.x, step.weights, step.hidden = x.data_ptr(), weights.data_ptr(), HIDDEN
        step.mailbox, step.sequence, step.runs = bench.box.alias, sequence, bench.gpu.runs
        step.gpu_share, step.dither = 1.0, 0.0
        final = torch.zeros(2, HIDDEN, device=DEVICE)
        bench.gpu.begin(step, (x, ids, weights))
        bench.gpu.end(step, final)
        torch.cuda.synchronize()
        seen.append(final)
    # In the first step all of them arrive, and their sums are cut in more slices.
    assert all(torch.equal(seen[1], other) for other in seen[2:])
    assert torch.allclose(seen[0], seen[1], atol=1e-3 * float(seen[1].abs().max()))
    assert seen[1].abs().max() > 0


def test_a_pass_that_broke_off_is_joined(make_bench) -> None:
    """Its copies end before anything else changes the slots."""
    bench = make_bench((3, 3))
    bench.rig.residency.gather_repeats = 200
    ids = torch.tensor([[7, 8, 9, 10]], dtype=torch.int64, device=DEVICE)
    x = torch.randn(1, HIDDEN, device=DEVICE).half()
    weights = torch.full((1, PER_ROW), 0.3, device=DEVICE).half()
    step = bench.rig.residency.new_step(1)
    step.picks, step.num_picks, step.per_row = ids.data_ptr(), 4, PER_ROW
    step.x, step.weights, step.hidden = x.data_ptr(), weights.data_ptr(), HIDDEN
    step.mailbox, step.sequence, step.runs = bench.box.alias, 1, bench.gpu.runs
    bench.gpu.begin(step, (x, ids, weights))
    bench.gpu.join()
    bench.rig.residency.gather_repeats = 1
    bench.rig.residency.evict(0, SLOTS, lock=False)
    torch.cuda.synchronize()
    assert bench.gpu._computed.query()
    assert bench.step([[1, 2, 3, 4]], share=1.0) < TOLERANCE
    assert bench.rig.residency.verify() == 0


def test_shapes_that_the_kernels_do_not_know_are_refused(make_bench) -> None:
    assert not ExpertShape(384, 640, (3, 4, 3), 10.0, 8).on_gpu
    assert not ExpertShape(384, 650, (3, 3, 3), 10.0, 8).on_gpu
    assert not ExpertShape(384, 640, (3, 3, 9), 10.0, 8).on_gpu
    assert not ExpertShape(384, 640, (3, 3, 3), 10.0, 9).on_gpu
    bench = make_bench((3, 3))
    bad = ExpertShape(384, 640, (9, 9, 3), 10.0, 4)
    with pytest.raises(CudaKernelError, match="bits"):
        GpuExperts(bench.rig.residency, bench.gpu._pointers, bad, StepEvents(DEVICE))


def test_steps_without_a_pause_follow_what_changes(make_bench) -> None:
    """Inputs, picks, weights, the split and the numbers change; timed steps come between."""
    bench, chance = make_bench((3, 3)), random.Random(9)
    ids = torch.zeros(2, PER_ROW, dtype=torch.int64, device=DEVICE)
    x = torch.zeros(2, HIDDEN, device=DEVICE).half()
    weights = torch.zeros(2, PER_ROW, device=DEVICE).half()
    bench.sequence = 0xFFFFFFF0  # the numbers go round
    posted = 0
    for number in range(60):
        picks = [chance.sample(range(EXPERTS), PER_ROW) for _ in range(2)]
        ids.copy_(torch.tensor(picks))
        x.copy_(torch.randn(2, HIDDEN))
        weights.copy_(torch.rand(2, PER_ROW) + 0.05)
        bench.rig.residency.gather_times = [] if number % 11 == 5 else None
        before = int(bench.box.word(0)[0])
        error = bench.run(ids, x, weights, share=[1.0, 0.5, 0.0][number // 7 % 3])
        assert error < TOLERANCE, number
        posted += int(bench.box.word(0)[0]) != before
    assert 10 < posted < 60
    assert bench.rig.residency.verify() == 0
