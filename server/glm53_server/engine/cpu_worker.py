"""The thread that owns the model: every running job gets one step in turn, the others wait in line.

The thread alone changes the list of running jobs; the waiting line is shared under one lock.
Whatever happens to a job, its reader gets exactly one Done or Failed, and the thread goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import torch

from glm53_server.engine.base import (
    Done,
    EngineError,
    Failed,
    FinishReason,
)
from glm53_server.engine.jobs import Counters, Job, Step

log = logging.getLogger(__name__)


class Worker:
    """Runs jobs, at most `max_running` at a time. `begin` makes a job's steps, on the thread."""

    def __init__(
        self, begin: Callable[[Job], Iterator[Step]], *, max_running: int, threads: int
    ) -> None:
        self.counters = Counters()
        self._max_running = max_running
        self._threads = threads
        self._running: list[Job] = []
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._ended = False
        self._on_end: list[Callable[[], object]] = []
        self._thread = threading.Thread(
            target=self._run, args=(begin,), name="cpu-engine", daemon=True
        )
        self._thread.start()

    @property
    def alive(self) -> bool:
        return not self._ended

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, job: Job) -> None:
        """Put a job at the end of the line. Raises EngineError(503) when the worker has ended."""
        with self._changed:
            if self._stopping or self._ended:
                raise EngineError("the engine is shut down", status=503, code="engine_closed")
            self.counters.requests += 1
            self._waiting.append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Free a job's place: at once while it waits, else before its next step."""
        with self._changed:
            job.cancelled = True
            if job in self._waiting:
                self._waiting.remove(job)
                self.counters.cancelled += 1

    def stop(self, on_end: Callable[[], object]) -> None:
        """Cancel everything and end the thread, which calls `on_end` last; at once if it has ended."""
        with self._changed:
            self._stopping = True
            if not self._ended:
                self._on_end.append(on_end)
                self._changed.notify()
                return
        on_end()

    def join(self) -> None:
        self._thread.join()

    def _run(self, begin: Callable[[Job], Iterator[Step]]) -> None:
        torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                while self._admit(begin):
                    for job in tuple(self._running):
                        self._advance(job)
        finally:
            self._end_all()

    def _admit(self, begin: Callable[[Job], Iterator[Step]]) -> bool:
        """Wait for work and let jobs in; False when the worker shall stop."""
        with self._changed:
            while not (self._stopping or self._running or self._waiting):
                self._changed.wait()
            while self._waiting and len(self._running) < self._max_running:
                job = self._waiting.popleft()
                job.steps = begin(job)
                self._running.append(job)
            return not self._stopping

    def _advance(self, job: Job) -> None:
        """One step of one job."""
        if job.cancelled:
            self.counters.cancelled += 1
            self._running.remove(job)
            job.end(_cancelled(job))
            return
        started_s = time.monotonic()
        try:
            step = next(job.steps)
        except EngineError as err:
            self._fail(job, err)
        except Exception as err:
            log.exception("request %s failed", job.request.request_id)
            self._fail(job, EngineError(f"the engine failed on this request: {err}"))
        else:
            self.counters.count(job, step, time.monotonic() - started_s)
            if step and isinstance(step[-1], Done):
                self._running.remove(job)
                job.steps = iter(())
            job.deliver(step)

    def _fail(self, job: Job, error: EngineError) -> None:
        self.counters.failed += 1
        self._running.remove(job)
        job.end(Failed(error))

    def _end_all(self) -> None:
        with self._changed:
            self._ended = True
            left = [*self._running, *self._waiting]
            self._running.clear()
            self._waiting.clear()
            callbacks, self._on_end = self._on_end, []
        for job in left:
            lost = EngineError("the engine has stopped", status=503, code="engine_lost")
            job.end(_cancelled(job) if self._stopping else Failed(lost))
        for callback in callbacks:
            callback()


def _cancelled(job: Job) -> Done:
    return Done(FinishReason.CANCELLED, len(job.request.prompt_ids), job.completion_tokens)
