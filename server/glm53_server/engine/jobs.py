"""What engines with a thread of their own share: a job, what it must fit, and what was done so far."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from glm53_server.engine.base import Done, EngineError, Event, Failed, GenRequest, Tokens

Step = tuple[Event, ...]
"""What one forward pass brought to one job."""

_RATE_WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a request must fit: ids below `vocab_size`, prompt and output within `context_tokens`."""

    vocab_size: int
    context_tokens: int

    def check(self, request: GenRequest) -> None:
        """Raise EngineError(400) for a request that can never run."""
        length = len(request.prompt_ids)
        if length == 0:
            raise EngineError(
                "the prompt is empty", status=400, code="invalid_value", param="prompt"
            )
        if length + min(request.max_tokens, 1) > self.context_tokens:
            raise EngineError(
                f"the prompt has {length} tokens; the context holds {self.context_tokens} "
                "for prompt and output together",
                status=400,
                code="context_length_exceeded",
                param="prompt",
            )
        biased = (token_id for token_id, _ in request.sampling.logit_bias)
        for param, ids in (
            ("prompt", request.prompt_ids),
            ("logit_bias", biased),
            ("logprob_ids", request.logprob_ids),
        ):
            if wrong := [id for id in ids if not 0 <= id < self.vocab_size]:
                raise EngineError(
                    f"token id {wrong[0]} is outside the vocabulary of {self.vocab_size}",
                    status=400,
                    code="invalid_value",
                    param=param,
                )


class Job:
    """A submitted request. Made on the event loop; its steps run on the worker's thread."""

    def __init__(self, request: GenRequest, guide: Any) -> None:
        self.request = request
        self.guide = guide
        self.cancelled = False
        self.completion_tokens = 0
        self.steps: Iterator[Step] = iter(())
        self.arrived: asyncio.Queue[Step] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def deliver(self, step: Step) -> None:
        """Hand events to the reader, from the worker's thread."""
        try:
            self._loop.call_soon_threadsafe(self.arrived.put_nowait, step)
        except RuntimeError:  # the reader's event loop is closed: nobody is left to read
            self.cancelled = True

    def end(self, event: Done | Failed) -> None:
        """Deliver the last event of a job that ended otherwise than by its own steps."""
        self.steps = iter(())
        self.deliver((event,))


class Counters:
    """What the worker has done so far. Written by its thread, read from any."""

    def __init__(self) -> None:
        self.steps = 0
        self.requests = 0
        self.failed = 0
        self.cancelled = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.prefill_s = 0.0
        self.decode_s = 0.0
        self._recent: deque[tuple[float, int]] = deque(maxlen=1024)

    def count(self, job: Job, step: Step, took_s: float) -> None:
        """One step of one job, and how long it took."""
        self.steps += 1
        if job.completion_tokens == 0:  # up to and including the first token
            self.prefill_s += took_s
        else:
            self.decode_s += took_s
        self.count_tokens(job, step)

    def count_tokens(self, job: Job, step: Step) -> None:
        """The tokens a step brought to one job."""
        produced = sum(len(event.ids) for event in step if isinstance(event, Tokens))
        if not produced:
            return
        if job.completion_tokens == 0:
            self.prompt_tokens += len(job.request.prompt_ids)
        job.completion_tokens += produced
        self.completion_tokens += produced
        self._recent.append((time.monotonic(), produced))

    def shown(self) -> dict[str, object]:
        """As /stats shows them."""
        return {
            "requests": self.requests,
            "requests_failed": self.failed,
            "requests_cancelled": self.cancelled,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "prefill_s": round(self.prefill_s, 3),
            "decode_s": round(self.decode_s, 3),
            "tokens_per_s": round(self.recent_tokens_per_s(), 2),
        }

    def recent_tokens_per_s(self) -> float:
        """Tokens produced per second over the last ten seconds with output."""
        since = time.monotonic() - _RATE_WINDOW_S
        recent = [(at_s, tokens) for at_s, tokens in tuple(self._recent) if at_s >= since]
        if len(recent) < 2:
            return 0.0
        span_s = recent[-1][0] - recent[0][0]
        return sum(tokens for _, tokens in recent[1:]) / span_s if span_s > 0 else 0.0


class Ending:
    """An end that several callers ask for: it happens once, and all of them wait for it. One loop."""

    def __init__(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._end = end
        self._task: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._end())
        if self._task.done():
            return self._task.result()
        return await asyncio.shield(self._task)  # a caller that gives up must not stop it
