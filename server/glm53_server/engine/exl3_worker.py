"""The engine thread: the only caller of exllamav3's Generator.

Commands arrive on one queue; between two iterations it is drained, so a cancelled stream frees its
pages within one forward. A failure of one request ends that request; a failure of the step ends all
running ones and the thread goes on with a fresh Generator; a CUDA failure ends the engine.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from glm53_server.engine.base import Done, EngineError, Event, Failed, FinishReason, Tokens
from glm53_server.engine.exl3_session import Session
from glm53_server.engine.jobs import Counters, Job
from glm53_server.moe.pressure import is_out_of_memory

log = logging.getLogger(__name__)
Command = Callable[[], None]


class Exl3Worker:
    """Runs a Session. Public methods may be called from any thread; they only post commands."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._posting = (
            threading.Lock()
        )  # no command arrives once the thread has said that it ended
        self._jobs: dict[str, Job] = {}
        self._stopping = False
        self._ended = False
        self._on_end: list[Callable[[], object]] = []
        self._accepted = 0
        self._thread = threading.Thread(target=self._run, name="glm53-engine", daemon=True)
        self.counters = Counters()
        self.lost: str | None = None
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self.lost is None and not self._ended

    @property
    def running(self) -> int:
        return min(len(self._jobs), self._session.active) if self._jobs else 0

    @property
    def waiting(self) -> int:
        return max(0, len(self._jobs) - self._session.active)

    def add(self, job: Job, grammar_filter: Any) -> None:
        """Accept a job; its events arrive in job.arrived. Raises EngineError when the engine is lost."""
        if self.lost is not None or not self._post(lambda: self._add(job, grammar_filter)):
            raise EngineError(f"the engine is lost: {self.lost}", status=503, code="engine_lost")

    def cancel(self, job: Job) -> None:
        """Drop a job that nobody reads any more. Calm when it has ended already."""
        job.cancelled = True
        self._post(lambda: self._cancel(job))

    def stop(self, ended: Callable[[], object]) -> None:
        """End the thread after the current iteration; `ended` is called last."""

        def command() -> None:
            self._stopping = True
            self._on_end.append(ended)

        if not self._post(command):
            ended()

    def _post(self, command: Command) -> bool:
        """Have the thread run a command; False when it has ended and will not."""
        with self._posting:
            if not self._ended:
                self._commands.put(command)
            return not self._ended

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping and self.lost is None:
                self._take_commands()
                if self._session.has_work and not self._stopping:
                    self._step()
        finally:
            with self._posting:
                self._ended = True
            self._end_all(_stopped())
            self._run_pending()  # what arrived during the last step is answered too
            for ended in self._on_end:
                ended()

    def _take_commands(self) -> None:
        if not self._session.has_work:
            self._commands.get()()
        self._run_pending()

    def _run_pending(self) -> None:
        while True:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
            command()

    def _add(self, job: Job, grammar_filter: Any) -> None:
        if job.cancelled:
            return
        self.counters.requests += 1
        if self._ended:
            self.counters.failed += 1
            job.end(Failed(_stopped()))
            return
        try:
            if job.request.prompt_logprobs_from is not None:
                job.deliver((self._session.score(job.request),))
                self.counters.steps += 1
            if job.request.max_tokens == 0:
                job.end(Done(FinishReason.LENGTH, len(job.request.prompt_ids), 0))
                return
            self._session.add(job.request, grammar_filter)
        except EngineError as err:
            self.counters.failed += 1
            job.end(Failed(err))
            return
        except Exception as err:  # noqa: BLE001 - as in a step: the request ends, never the thread
            told = self._step_failed(err)
            self.counters.failed += 1
            job.end(Failed(told))
            return
        self._jobs[job.request.request_id] = job

    def _cancel(self, job: Job) -> None:
        try:
            if not self._ended and self._session.cancel(job.request.request_id):
                self.counters.cancelled += 1
        except Exception as err:  # noqa: BLE001 - nobody reads this request; the others are told
            self._step_failed(err)
        if self._jobs.pop(job.request.request_id, None) is not None:
            job.end(
                Done(FinishReason.CANCELLED, len(job.request.prompt_ids), job.completion_tokens)
            )

    def _step(self) -> None:
        started = time.monotonic()
        try:
            events = self._session.iterate()
        except Exception as err:  # noqa: BLE001 - every kind of failure ends the running jobs, none the thread
            self._step_failed(err)
            return
        took_s = time.monotonic() - started
        self.counters.steps += 1
        by_job: dict[str, list[Event]] = {}
        for request_id, event in events:
            by_job.setdefault(request_id, []).append(event)
        decoding = any(
            isinstance(event, Tokens) and self._has_begun(request_id)
            for request_id, event in events
        )
        for request_id, batch in by_job.items():
            self._deliver(request_id, tuple(batch))
        if decoding:  # a step that only brings first tokens ended a prompt
            self.counters.decode_s += took_s
        else:
            self.counters.prefill_s += took_s

    def _has_begun(self, request_id: str) -> bool:
        job = self._jobs.get(request_id)
        return job is not None and job.completion_tokens > 0

    def _deliver(self, request_id: str, step: tuple[Event, ...]) -> None:
        job = self._jobs.get(request_id)
        if job is None:
            return
        self.counters.count_tokens(job, step)
        job.deliver(step)
        last = step[-1]
        if isinstance(last, Done | Failed):
            self.counters.failed += isinstance(last, Failed)
            self._jobs.pop(request_id, None)

    def _step_failed(self, err: BaseException) -> EngineError:
        """End what runs and start afresh, or give the engine up; returns what was said."""
        log.exception("a step of the engine failed")
        told = EngineError(f"the engine failed: {err}")
        full = is_out_of_memory(err)
        if isinstance(err, torch.AcceleratorError) and not full:
            self._end_all(told)
            self.lost = str(err).splitlines()[0]
            return told
        try:
            if full:
                told = self._session.out_of_memory()
            torch.cuda.empty_cache()
            self._session.drop_all()
        except Exception as again:  # noqa: BLE001 - there is no session to go on with
            self.lost = f"{err}; rebuilding failed: {again}"
        self._end_all(told)
        return told

    def _end_all(self, error: EngineError) -> None:
        for job in self._jobs.values():
            self.counters.failed += 1
            job.end(Failed(error))
        self._jobs.clear()


def _stopped() -> EngineError:
    return EngineError("the engine stopped", status=503, code="engine_stopped")
