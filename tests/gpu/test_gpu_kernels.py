"""The residency kernels against their slow twins, bit for bit."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from cache_model import ONE_PICK
from gpu_rig import DEVICE, PinnedBox, Rig
from tier_cases import EXPERT, LAYER, NUM_PICKS, NUM_ROWS, PICKS, ROW, WEIGHT, X

from glm53_kernels.cuda import CudaKernelError, CudaKernels

HIDDEN = 256


@pytest.mark.parametrize(
    ("name", "slots"), [("odd", 33), ("small", 100), ("tiny", 10), ("tiny", 1)]
)
def test_steps_follow_the_model(make_rig: Callable[..., Rig], name: str, slots: int) -> None:
    rig, chance = make_rig(name, slots), random.Random(slots)
    rig.check()
    for number in range(120):
        layer = chance.randrange(rig.layout.layers)
        hot = range(max(1, rig.layout.experts // 4))
        pool = hot if chance.random() < 0.7 else range(-1, rig.layout.experts + 1)
        picks = chance.sample(pool, min(len(pool), chance.randrange(1, 9)))
        picks += picks[: chance.randrange(3)]
        rig.step(layer, picks, admit_limit=chance.choice([0, 1, 3, 256]))
        if number % 40 == 20:
            first = chance.randrange(slots)
            rig.evict(first, chance.randrange(1, slots - first + 1), lock=chance.random() < 0.5)
        rig.check()
    assert rig.counted["hits"] > 0
    assert rig.counted["evictions"] > 0
    assert rig.residency.verify() == 0


def test_no_picks_and_no_slots(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.step(0, [])
    rig.check()
    none = make_rig("tiny", 0)
    step = none.residency.new_step(0)
    ids = torch.tensor([1, 2], device=DEVICE)
    step.picks, step.num_picks = ids.data_ptr(), 2
    none.residency.decode_step(step)
    counters = none.residency.counters()
    assert (counters["misses"], counters["no_victim"], counters["admitted"]) == (2, 2, 0)
    assert none.found_tables() == none.expected_tables()


def test_duplicate_picks_take_one_slot_and_count_once(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    ids = torch.tensor([5, 7, 5, 5, 7, 2], dtype=torch.int64, device=DEVICE)
    step = rig.residency.new_step(1)
    step.picks, step.num_picks, step.per_row = ids.data_ptr(), 6, 2
    rig.residency.decode_step(step)
    counters = rig.residency.counters()
    assert (counters["misses"], counters["admitted"]) == (3, 3)
    base = rig.layout.experts
    assert sorted(k for k in rig.residency.owner.tolist() if k >= 0) == [
        base + 2,
        base + 5,
        base + 7,
    ]
    heat = rig.residency.heat().tolist()
    assert [heat[base + e] / ONE_PICK for e in (2, 5, 7)] == [1, 3, 2]
    assert rig.residency.verify() == 0


def test_tables_from_nothing_and_with_overrides(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.step(0, [1, 2, 3])
    for layer in rig.tables:
        for table in layer:
            table.zero_()
    rig.residency.rebuild(0, rig.layout.layers)
    assert rig.found_tables() == rig.expected_tables()
    keys = rig.layout.layers * rig.layout.experts
    overrides = torch.zeros(keys, dtype=torch.int64)
    overrides[rig.layout.experts + 4] = 4096
    rig.residency.rebuild(1, 1, overrides.to(DEVICE))
    expected = rig.expected_tables()
    for part, offset in enumerate(rig.layout.offsets):
        expected[1][part][4] = 4096 + offset
    assert rig.found_tables() == expected
    rig.residency.rebuild(1, 1)
    assert rig.found_tables() == rig.expected_tables()


def test_adopting_slots_that_were_filled_outside(make_rig: Callable[..., Rig]) -> None:
    """-1 skips; an expert that lives elsewhere and a slot that is taken stay as they are."""
    rig = make_rig()
    rig.step(0, [0])
    taken = rig.slot_of(0)
    assert taken == 0
    for slot, key in ((3, 20), (5, 30)):
        rig.memory[slot].copy_(rig.record(key))
    keys = torch.tensor([9, 0, -1, 20, 0, 30], dtype=torch.int32, device=DEVICE)
    rig.residency.adopt(0, keys)
    rig.ring.owner[3], rig.ring.owner[5] = 20, 30
    rig.check()
    assert rig.residency.verify() == 0


@pytest.mark.parametrize("at", [0, 12288, -1])
def test_verify_sees_one_wrong_byte(make_rig: Callable[..., Rig], at: int) -> None:
    rig = make_rig()
    rig.step(0, [1, 2, 3])
    assert rig.residency.verify() == 0
    slot = rig.slot_of(2)
    assert slot is not None
    rig.memory[slot, at] ^= 1
    assert rig.residency.verify() == 1
    rig.memory[slot, at] ^= 1
    assert rig.residency.verify() == 1


def test_verify_sees_wrong_tables_and_maps(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.step(0, [1, 2, 3])
    rig.tables[2][1][4] += 16
    assert rig.residency.verify() == 1
    rig.residency.rebuild(2, 1)
    rig.residency.slot_of[1] = -1  # the slot says expert 1, expert 1 says nowhere
    assert rig.residency.verify() == 1 + 2


def test_wrong_calls_are_refused_in_words(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    residency = rig.residency
    step = residency.new_step(rig.layout.layers)
    with pytest.raises(CudaKernelError, match="layer out of range"):
        residency.decode_step(step)
    step = residency.new_step(0)
    step.num_picks = 257
    with pytest.raises(CudaKernelError, match="num_picks"):
        residency.decode_step(step)
    step = residency.new_step(0)
    step.num_picks, step.per_row, step.hidden, step.mailbox = 6, 4, HIDDEN, 64
    with pytest.raises(CudaKernelError, match="rows do not fit"):
        residency.decode_step(step)
    with pytest.raises(CudaKernelError, match="layer range"):
        residency.rebuild(1, rig.layout.layers)
    with pytest.raises(CudaKernelError, match="slot range"):
        residency.evict(8, 3, lock=True)
    with pytest.raises(CudaKernelError, match="slot range"):
        residency.adopt(9, torch.tensor([1, 2], dtype=torch.int32, device=DEVICE))
    rig.check()


@pytest.fixture
def box(kernels: CudaKernels) -> Iterator[PinnedBox]:
    pinned = PinnedBox(kernels, HIDDEN)
    yield pinned
    pinned.close()


def posted_step(rig: Rig, box: PinnedBox, picks: list[list[int]], sequence: int, share: float, dither: float):  # fmt: skip
    """Run a step of layer 1 with a mailbox; returns (step, x, weights before, weights, ids)."""
    rows, per_row = len(picks), len(picks[0])
    ids = torch.tensor(picks, dtype=torch.int64, device=DEVICE)
    x = torch.randn(rows, HIDDEN, device=DEVICE).half()
    weights = torch.rand(rows, per_row, device=DEVICE).half() + 0.01
    before = weights.clone()
    step = rig.residency.new_step(1)
    step.picks, step.num_picks, step.per_row = ids.data_ptr(), rows * per_row, per_row
    step.x, step.weights, step.hidden = x.data_ptr(), weights.data_ptr(), HIDDEN
    step.mailbox, step.sequence, step.gpu_share, step.dither = box.alias, sequence, share, dither
    rig.residency.admit_limit = 256
    rig.residency.decode_step(step)
    torch.cuda.synchronize()
    return step, x, before, weights, ids


@pytest.mark.parametrize(("share", "dither", "admitted"), [(0.0, 0.0, 0), (0.5, 0.0, 2), (0.5, 0.5, 3), (0.25, 0.75, 2)])  # fmt: skip
def test_what_the_cpu_computes_is_posted_and_switched_off(
    make_rig: Callable[..., Rig], box: PinnedBox, share: float, dither: float, admitted: int
) -> None:
    rig = make_rig()
    rig.step(1, [3])
    picks = [3, 4, 5, 6, 7, 8]
    _, x, before, weights, _ = posted_step(rig, box, [picks], 7, share, dither)
    decision = rig.decided(1, picks, 256, share, dither)
    rig.check()
    assert len(decision.admissions) == admitted
    here = {3} | {expert for expert, _, _ in decision.admissions}
    cpu = [p for p in picks if p not in here]
    n = int(box.word(NUM_PICKS)[0])
    assert (int(box.word(LAYER)[0]), int(box.word(NUM_ROWS)[0]), n) == (1, 1, len(cpu))
    assert sorted(box.word(EXPERT, np.int32, PICKS)[:n].tolist()) == cpu
    assert set(box.word(ROW, np.int32, PICKS)[:n].tolist()) == {0}
    sent = dict(zip(box.word(EXPERT, np.int32, PICKS)[:n].tolist(), box.word(WEIGHT, np.float32, PICKS)[:n].tolist(), strict=True))  # fmt: skip
    assert sent == {p: float(before[0, picks.index(p)]) for p in cpu}
    assert [float(w) == 0 for w in weights[0]] == [p in cpu for p in picks]
    kept = [i for i, p in enumerate(picks) if p not in cpu]
    assert torch.equal(weights[0, kept], before[0, kept])
    assert (box.word(X, np.float32, HIDDEN) == x.float().cpu().numpy()[0]).all()
    assert (int(box.word(0)[0]), box.done) == (7, 0)


def test_several_rows_post_their_own_picks(make_rig: Callable[..., Rig], box: PinnedBox) -> None:
    rig = make_rig()
    picks = [[1, 2], [2, 9], [15, 1]]
    _, x, before, weights, _ = posted_step(rig, box, picks, 3, 0.0, 0.0)
    n = int(box.word(NUM_PICKS)[0])
    assert (n, int(box.word(NUM_ROWS)[0])) == (6, 3)
    found = sorted(
        zip(
            box.word(ROW, np.int32, PICKS)[:n].tolist(),
            box.word(EXPERT, np.int32, PICKS)[:n].tolist(),
            box.word(WEIGHT, np.float32, PICKS)[:n].tolist(),
            strict=True,
        )
    )
    wanted = [(r, e, float(before[r, i])) for r, row in enumerate(picks) for i, e in enumerate(row)]
    assert found == sorted(wanted)
    assert (weights == 0).all()
    assert (box.word(X, np.float32, 3 * HIDDEN) == x.float().cpu().numpy().ravel()).all()


def test_combine_adds_the_answer_after_waiting_for_it(
    make_rig: Callable[..., Rig], box: PinnedBox
) -> None:
    rig = make_rig()
    final = torch.randn(2, HIDDEN, device=DEVICE)
    stream = rig.residency.stream()
    # The first launch of a kernel loads it, which waits for the card: not behind a wait for this thread.
    first, *_ = posted_step(rig, box, [[1, 2], [3, 4]], 4, 0.0, 0.0)
    rig.kernels.combine(rig.residency.state, first, final.data_ptr(), stream)
    step, *_ = posted_step(rig, box, [[1, 2], [3, 4]], 5, 0.0, 0.0)
    torch.cuda.synchronize()
    before = final.clone()
    rig.kernels.mailbox_wait(step, stream)
    rig.kernels.combine(rig.residency.state, step, final.data_ptr(), stream)
    ended = torch.cuda.Event()
    ended.record()
    answer = torch.randn(2, HIDDEN)
    box.out(2)[:] = answer.numpy()
    time.sleep(0.05)
    assert not ended.query(), "the stream did not wait for the answer"
    box.empty(5)
    ended.synchronize()
    assert torch.equal(final.cpu(), before.cpu() + answer)


def test_nothing_posted_is_answered_by_the_device_and_adds_nothing(
    make_rig: Callable[..., Rig], box: PinnedBox
) -> None:
    rig = make_rig()
    rig.step(1, [3, 4])
    step, _, before, weights, _ = posted_step(rig, box, [[3, 4]], 9, 0.0, 0.0)
    assert (int(box.word(0)[0]), box.done) == (0, 9)
    assert torch.equal(weights, before)
    box.out(1)[:] = 1e9
    final = torch.ones(1, HIDDEN, device=DEVICE)
    stream = rig.residency.stream()
    rig.kernels.mailbox_wait(step, stream)
    rig.kernels.combine(rig.residency.state, step, final.data_ptr(), stream)
    torch.cuda.synchronize()
    assert (final == 1).all()


def test_the_wait_is_cyclic(make_rig: Callable[..., Rig], box: PinnedBox) -> None:
    """A job numbered 2 is done when `done` is 2, and not when it is 0xFFFFFFFF."""
    rig = make_rig()
    box.empty(0xFFFFFFFF)
    step, *_ = posted_step(rig, box, [[1, 2]], 2, 0.0, 0.0)
    rig.kernels.mailbox_wait(step, rig.residency.stream())
    ended = torch.cuda.Event()
    ended.record()
    time.sleep(0.05)
    assert not ended.query()
    box.empty(2)
    ended.synchronize()
