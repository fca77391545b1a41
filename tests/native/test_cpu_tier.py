"""The CPU tier through its mailbox, with the test in the GPU's place."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import exl3_oracle as oracle
import numpy as np
import pytest
from native_cases import PRECISIONS, Choice, relative_rms
from tier_cases import MASK, PICKS, running, slow_job, wait_until

from glm53_kernels import BadArgument, CpuTier, TierShape

BITS = (3, 4, 3)


def layers_of(count: int, experts: int = 4, hidden: int = 256, intermediate: int = 384):
    rng = np.random.default_rng(count)
    return [
        [oracle.random_expert(rng, hidden, intermediate, BITS) for _ in range(experts)]
        for _ in range(count)
    ]


def slow_layers(size: int):
    """256 names for one expert's memory: much work, little RAM."""
    return [[oracle.random_expert(np.random.default_rng(7), size, size, BITS)] * PICKS]


def inputs(rows: int, hidden: int = 256, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, hidden)).astype(np.float32)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("threads", [1, 2])
def test_answers_are_expert_forwards_bit_for_bit(open_kernels, precision, threads) -> None:
    layers = layers_of(3)
    jobs = (
        (0, Choice.of((2, 0, 0.5)), 1),
        (2, Choice.of((3, 1, 0.3), (0, 0, 0.7), (3, 0, 0.2), (1, 1, -0.4)), 2),
        (1, Choice.of(*((e, r, 0.1 * (e + r)) for r in range(8) for e in (3, 1, 0))), 8),
        (0, Choice.of((1, 2, 1.0)), 4),
    )
    with running(open_kernels(precision=precision, threads=threads), layers) as open_:
        for sequence, (layer, choice, rows) in enumerate(jobs, 1):
            x = inputs(rows, seed=sequence)
            got = open_.run(sequence, layer, choice, x)
            assert (got == open_.expected(layer, choice, x)).all(), sequence
            if sequence == 2:
                sent = x.astype(np.float16).astype(np.float32)
                assert relative_rms(got, choice.expected(layers[layer], sent, 10.0)) < 1.1e-3


def test_rows_without_picks_are_zero_and_the_last_answer_leaves_nothing(open_kernels) -> None:
    with running(open_kernels(), layers_of(1)) as open_:
        assert open_.run(1, 0, Choice.of((0, 0, 1.0), (0, 1, 1.0)), inputs(2)).all(1).all()
        got = open_.run(2, 0, Choice.of((0, 1, 1.0)), inputs(2))
        assert (got[0] == 0).all()
        assert (got[1] != 0).any()


def test_one_pick_twice_counts_twice(open_kernels) -> None:
    with running(open_kernels(), layers_of(1)) as open_:
        x = inputs(1)
        once = open_.run(1, 0, Choice.of((1, 0, 0.5)), x)
        twice = open_.run(2, 0, Choice.of((1, 0, 0.25), (1, 0, 0.25)), x)
        np.testing.assert_allclose(twice, once, rtol=1e-6, atol=1e-7)


def test_the_full_mailbox_of_256_picks(open_kernels) -> None:
    layers = layers_of(1, experts=32, hidden=128, intermediate=128)
    choice = Choice.of(*((e, r, 0.05) for r in range(8) for e in range(32)))
    with running(open_kernels(threads=2), layers) as open_:
        x = inputs(8, 128)
        assert (open_.run(1, 0, choice, x) == open_.expected(0, choice, x)).all()


def test_an_empty_job_is_answered_with_zeros(open_kernels) -> None:
    with running(open_kernels(), layers_of(1)) as open_:
        open_.run(1, 0, Choice.of((0, 0, 1.0)), inputs(1))
        assert (open_.run(2, 0, Choice.of(), inputs(1)) == 0).all()


def test_sequences_wrap_and_jump_over_what_the_device_answered(open_kernels) -> None:
    choice, x = Choice.of((0, 0, 1.0), (3, 0, 0.5)), inputs(1)
    with running(open_kernels(), layers_of(1)) as open_:
        want = open_.expected(0, choice, x)
        open_.box.empty(MASK - 3)
        for sequence in (MASK - 2, MASK - 1, MASK, 0, 1, 2):
            assert (open_.run(sequence, 0, choice, x) == want).all()
            assert open_.box.done == sequence
        open_.box.empty(3)
        open_.box.empty(4)
        assert (open_.run(5, 0, choice, x) == want).all()
        assert open_.tier.stats().jobs == 7


def test_counters_say_what_was_computed(open_kernels) -> None:
    with running(open_kernels(), layers_of(2)) as open_:
        open_.run(1, 0, Choice.of((0, 0, 1.0), (0, 1, 1.0), (3, 1, 1.0)), inputs(2))
        first = open_.tier.stats()
        assert (first.jobs, first.experts, first.picks) == (1, 2, 3)
        assert 0 < first.max_busy_ns == first.busy_ns
        open_.run(2, 1, Choice.of((1, 0, 1.0)), inputs(1))
        second = open_.tier.stats()
        assert (second.jobs, second.experts, second.picks) == (2, 3, 4)
        assert second.busy_ns > first.busy_ns
        assert (second.timeouts, second.aborted) == (0, False)


def test_a_job_after_a_pause_is_still_taken(open_kernels) -> None:
    """The thread stops polling after some milliseconds and must wake by itself."""
    choice, x = Choice.of((0, 0, 1.0)), inputs(1)
    with running(open_kernels(), layers_of(1)) as open_:
        want = open_.expected(0, choice, x)
        for sequence in (1, 2):
            time.sleep(0.3)
            assert (open_.run(sequence, 0, choice, x) == want).all()


def test_a_hung_job_frees_the_device_and_the_tier_comes_back(open_kernels) -> None:
    layers = slow_layers(2048)
    with running(open_kernels(isa="scalar"), layers, watchdog_ms=1000) as open_:
        x = inputs(1, 2048)
        slow, quick = slow_job(open_, 4.0), Choice.of((1, 0, 1.0))
        want = open_.expected(0, quick, x)
        open_.box.post(1, 0, slow, x)
        assert open_.box.wait(1) > 0.9, "the job was not slow enough to hang"
        assert open_.tier.stats().aborted
        assert open_.tier.stats().jobs == 0
        assert not open_.tier.reset(), "the hung job is still being computed"
        # The layers of the same decode step must not wait for the full time-out again.
        for sequence in (2, 3):
            open_.box.post(sequence, 0, quick, x)
            assert open_.box.wait(sequence) < 0.8
        assert open_.tier.stats().jobs == 0
        wait_until(lambda: open_.tier.reset())
        assert not open_.tier.stats().aborted
        assert (open_.run(4, 0, quick, x) == want).all()
        assert open_.box.done == 4, "a late answer moved the sequence back"
        assert open_.tier.stats().timeouts == 3


def test_a_stopped_process_is_not_a_hung_job(library) -> None:
    script = Path(__file__).with_name("tier_stopped.py")
    child = subprocess.Popen(
        [sys.executable, str(script), *([str(library)] if library else [])],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "posted\n"
        child.send_signal(signal.SIGSTOP)
        time.sleep(3.0)  # longer than the child's watchdog
        child.send_signal(signal.SIGCONT)
        said, _ = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert json.loads(said) == {"timeouts": 0, "aborted": False, "same": True}


def test_right_answers_while_every_core_is_busy(open_kernels) -> None:
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * len(os.sched_getaffinity(0)))
    ]
    try:
        with running(open_kernels(threads=4), layers_of(2)) as open_:
            choice, x = Choice.of((2, 0, 0.5), (0, 1, 0.5), (1, 1, 0.5)), inputs(2)
            want = [open_.expected(layer, choice, x) for layer in (0, 1)]
            for sequence in range(1, 21):
                got = open_.run(sequence, sequence % 2, choice, x)
                assert (got == want[sequence % 2]).all()
            assert open_.tier.stats().timeouts == 0
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_closing_idle_twice_and_with_a_job_under_way(open_kernels) -> None:
    with running(open_kernels(), layers_of(1)) as open_:
        open_.tier.close()
        open_.tier.close()
    layers = slow_layers(1024)
    kernels = open_kernels(isa="scalar")
    with running(kernels, layers) as open_:
        job, x = slow_job(open_, 0.3), inputs(1, 1024)
        want = open_.expected(0, job, x)
        open_.box.post(1, 0, job, x)
        open_.tier.close()
        assert open_.box.done in (0, 1)
        if open_.box.done == 1:  # it had begun: then it was finished
            assert (open_.box.out(1) == want).all()
    # The pool outlives the tier.
    with running(kernels, layers) as open_:
        assert (open_.run(1, 0, job, x) == want).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 100}, "multiples of 128"),
        ({"intermediate": 0}, "multiples of 128"),
        ({"bits": (3, 9, 3)}, "bits are 9"),
        ({"layers": 0}, "0 x 1 needed"),
        ({"experts": 2}, "1 x 2 needed"),
    ],
)
def test_a_wrong_shape_is_refused(open_kernels, changes, message) -> None:
    fields = {
        "layers": 1, "experts": 1, "hidden": 128, "intermediate": 128, "bits": (3, 3, 3),
        "act_limit": 0.0, "watchdog_ms": 1000,
    }  # fmt: skip
    box = np.zeros(1 << 16, np.uint8)
    address = box.ctypes.data + -box.ctypes.data % 64
    with pytest.raises(BadArgument, match=message):
        CpuTier(open_kernels(), TierShape(**{**fields, **changes}), [(address,) * 9], address)


@pytest.mark.parametrize("shift", [8, None])
def test_a_mailbox_off_its_lines_is_refused(open_kernels, shift) -> None:
    box = np.zeros(1 << 16, np.uint8)
    address = box.ctypes.data + -box.ctypes.data % 64
    shape = TierShape(1, 1, 128, 128, (3, 3, 3), 0.0, 1000)
    with pytest.raises(BadArgument, match="mailbox"):
        CpuTier(open_kernels(), shape, [(address,) * 9], 0 if shift is None else address + shift)


def test_a_closed_tier_refuses(open_kernels) -> None:
    with running(open_kernels(), layers_of(1)) as open_:
        open_.tier.close()
        for call in (open_.tier.stats, open_.tier.reset):
            with pytest.raises(BadArgument, match="this tier is closed"):
                call()


def test_a_closed_pool_takes_no_tier(open_kernels) -> None:
    kernels = open_kernels()
    shape = TierShape(1, 1, 256, 384, BITS, 0.0, 1000)
    kernels.close()
    with pytest.raises(BadArgument, match="these kernels are closed"):
        CpuTier(kernels, shape, [(64,) * 9], 64)


def test_closing_the_pool_ends_its_tier_first(open_kernels) -> None:
    kernels = open_kernels(threads=2)
    with running(kernels, slow_layers(1024)) as open_:
        open_.box.post(1, 0, slow_job(open_, 0.3), inputs(1, hidden=1024))
        time.sleep(0.05)  # it has begun
        kernels.close()
        with pytest.raises(BadArgument, match="closed"):
            open_.tier.stats()


@pytest.mark.parametrize(
    "change", [{"hidden": 2**32 + 256}, {"watchdog_ms": -1}, {"bits": (2**32 + 3, 4, 3)}]
)
def test_a_shape_does_not_wrap_around(open_kernels, change) -> None:
    shape = dataclasses.replace(TierShape(1, 1, 256, 384, BITS, 0.0, 1000), **change)
    with pytest.raises(BadArgument, match=f"{next(iter(change))} is "):
        CpuTier(open_kernels(), shape, [(64,) * 9], 64)
