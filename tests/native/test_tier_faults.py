"""Faults of the machine under the CPU tier: workers that die, cores that go away, cores that are busy.

The test plays the GPU: it posts jobs and waits as the stream does. Every answer must be the right one,
bit for bit, or none at all (the watchdog released the wait and says so).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import exl3_oracle as oracle
import numpy as np
import pytest
from native_cases import Choice, table_of
from tier_cases import Running, running

from glm53_kernels import BadArgument

CPUS = sorted(os.sched_getaffinity(0))
CHOICE = Choice.of(*((e, r, 0.2 + 0.1 * e) for e in range(4) for r in range(2)))


def layers() -> list[list[oracle.Expert]]:
    rng = np.random.default_rng(11)
    return [[oracle.random_expert(rng, 256, 384, (3, 4, 3)) for _ in range(4)]]


def x_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2, 256)).astype(np.float32)


def expected(open_: Running, count: int) -> list[np.ndarray]:
    return [open_.expected(0, CHOICE, x_of(seed)) for seed in range(count)]


def check_jobs(open_: Running, want: Sequence[np.ndarray], first: int) -> None:
    """Run one job per expected answer, numbered from `first`; each is exact and none timed out."""
    for seed, answer in enumerate(want):
        got = open_.run(first + seed, 0, CHOICE, x_of(seed))
        assert (got == answer).all(), f"job {seed} has a wrong answer"
    stats = open_.tier.stats()
    assert (stats.timeouts, stats.aborted) == (0, False)


def threads_of(pid: int = os.getpid()) -> set[int]:
    return {int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()}


def wait_for(true) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_worker_that_dies_between_jobs_is_done_without(open_kernels) -> None:
    before = threads_of()
    kernels = open_kernels(threads=3)
    workers = threads_of() - before
    assert len(workers) == 2
    with running(kernels, layers()) as open_:
        want = expected(open_, 8)
        check_jobs(open_, want, 1)
        for lost in (1, 2):
            kernels.lose_worker(in_job=False)
            check_jobs(open_, want, 1 + 8 * lost)
            wait_for(lambda lost=lost: len(workers & threads_of()) == 2 - lost)
        # Nobody but the tier's own thread is left, and it computes everything.
        check_jobs(open_, want, 25)
        assert open_.tier.stats().jobs == 32
        assert open_.tier.close()


def test_the_workers_that_are_left_compute_the_same(open_kernels) -> None:
    """Without a mailbox, so that the thread sanitizer may watch."""
    kernels, table = open_kernels(threads=4), table_of(layers()[0], act_limit=10.0)

    def forward() -> np.ndarray:
        out = np.zeros((2, 256), np.float32)
        kernels.expert_forward(table, x_of(0), out, rows=2, picks=CHOICE.picks)
        return out

    want = forward()
    for _ in range(4):  # the last one finds no worker any more
        kernels.lose_worker(in_job=False)
        for _ in range(5):
            assert (forward() == want).all()


def test_a_worker_lost_inside_a_job_hangs_neither_the_device_nor_the_end(library) -> None:
    script = Path(__file__).with_name("tier_lost.py")
    run = subprocess.run(
        [sys.executable, str(script), str(library or "-")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout.splitlines()[-1])
    assert report["same_before"]
    assert 0.4 < report["released_s"] < 5, "the watchdog releases the device"
    assert report["computed"], "a job without its lost part counts as computed"
    assert not report["came_back"], "the lost part is still missing"
    assert report["next_s"] < 1, "the next layer of the step waits for the whole time-out again"
    assert report["timeouts"] >= 2
    assert not report["ended"]
    assert report["close_s"] < 5


def test_a_pool_of_one_has_no_worker_to_lose(open_kernels) -> None:
    with pytest.raises(BadArgument, match="no worker to lose"):
        open_kernels(threads=1).lose_worker(in_job=True)


@contextmanager
def confined(cpus: set[int]) -> Iterator[None]:
    """All threads of this process on fewer CPUs, as when a core goes offline or a cpuset shrinks."""

    def confine(thread: int, where: set[int]) -> set[int]:
        try:
            mask = os.sched_getaffinity(thread)
            os.sched_setaffinity(thread, where)
        except ProcessLookupError:  # it has ended
            return where
        return mask

    before = {thread: confine(thread, cpus) for thread in threads_of()}
    try:
        yield
    finally:
        everywhere = set[int]().union(*before.values())
        for thread in threads_of():
            confine(thread, before.get(thread, everywhere))


@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU: none can go away")
def test_a_core_is_taken_from_the_mask_while_jobs_run(open_kernels) -> None:
    kernels = open_kernels(threads=2, cpus=CPUS[:2])
    with running(kernels, layers()) as open_:
        want = expected(open_, 10)
        check_jobs(open_, want, 1)
        with confined({CPUS[0]}):
            check_jobs(open_, want, 11)
        check_jobs(open_, want, 21)  # and it is back
        stop = threading.Event()

        def flap() -> None:
            while not stop.is_set():
                with confined({CPUS[1]}):
                    time.sleep(0.01)

        thread = threading.Thread(target=flap)
        thread.start()
        try:
            for round_ in range(5):
                check_jobs(open_, want, 31 + 10 * round_)
        finally:
            stop.set()
            thread.join()


@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU: none can go away")
def test_a_pool_on_a_core_that_is_gone_is_refused_by_name(open_kernels) -> None:
    gone = max(CPUS) + 1
    with pytest.raises(BadArgument, match=f"cpu {gone} is not available"):
        open_kernels(threads=2, cpus=[CPUS[0], gone])
