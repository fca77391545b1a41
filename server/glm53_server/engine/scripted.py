"""The scripted engine: says what its plan tells it to, at a set speed, and misbehaves on demand.

It serves tests of everything around an engine. It samples nothing, so temperature, biases and
grammars have no effect on it; token budgets, stop ids, queueing and cancelling are real.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice
from pathlib import Path

from glm53_server.engine.base import (
    Done,
    EngineError,
    EngineInfo,
    EngineState,
    Event,
    Failed,
    FinishReason,
    GenRequest,
    Progress,
    PromptProgress,
    PromptScores,
    Tokens,
    TokenScore,
)
from glm53_server.tokenizer import Tokenizer
from glm53ctl.errors import ChildExit
from glm53ctl.plan import Plan, ScriptPlan

_KEPT_REQUESTS = 64
_SURE, _NEVER = 0.0, -100.0  # log-probabilities: a script is certain of its own words


@dataclass(frozen=True, slots=True)
class Script:
    """What one generation says: groups of ids, each delivered as one event, then how it ends."""

    groups: tuple[tuple[int, ...], ...]
    end: FinishReason = FinishReason.STOP
    error: EngineError | None = None  # fail with this after the groups


def load(plan: Plan, progress: Progress) -> ScriptedEngine:
    """Build the engine of a plan; the plan's script may make it slow, or end the process."""
    script = plan.script or ScriptPlan()
    if script.ignore_sigterm:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    progress("script", 0, 1)
    if script.start_delay_s:
        time.sleep(script.start_delay_s)
    if script.exit_code_at_start is not None:
        raise SystemExit(script.exit_code_at_start)
    tokenizer = Tokenizer(Path(plan.model.path) / "tokenizer.json")
    progress("script", 1, 1)
    return ScriptedEngine(plan, script, tokenizer)


class ScriptedEngine:
    """Implements the engine protocol on the event loop itself; it owns no thread."""

    def __init__(self, plan: Plan, script: ScriptPlan, tokenizer: Tokenizer) -> None:
        self._plan_script = script
        self._end_id = tokenizer.id_of("<|endoftext|>") or 0
        self._info = EngineInfo(
            engine="scripted",
            model_path=plan.model.path,
            served_name=plan.model.served_name,
            context_tokens=plan.model.context_tokens,
            vocab_size=tokenizer.vocab_size,
            eos_ids=tokenizer.turn_end_ids,
            max_batch=plan.limits.max_batch,
        )
        self._closed = asyncio.Event()
        self._slots = asyncio.Semaphore(plan.limits.max_batch)
        self._steps = self._running = self._queued = 0
        self._state = EngineState.READY
        ids = tokenizer.encode_raw(script.text)
        self.script = Script(tuple((token_id,) for token_id in ids))
        self.requests: deque[GenRequest] = deque(maxlen=_KEPT_REQUESTS)

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def steps(self) -> int:
        return self._steps

    @property
    def running(self) -> int:
        return self._running

    @property
    def queued(self) -> int:
        return self._queued

    def replay(self, script: Script) -> None:
        """Say this from the next request on."""
        self.script = script

    async def submit(self, request: GenRequest) -> AsyncIterator[Event]:
        self.requests.append(request)
        self._queued += 1
        try:
            await self._slots.acquire()
        finally:
            self._queued -= 1
        self._running += 1
        try:
            async for event in self._say(request, self.script):
                yield event
        except EngineError as err:
            yield Failed(err)
        finally:
            self._running -= 1
            self._slots.release()

    def stats(self) -> dict[str, object]:
        return {"script_tokens": sum(len(group) for group in self.script.groups)}

    async def close(self) -> None:
        self._state = EngineState.LOST
        self._closed.set()

    async def _say(self, request: GenRequest, script: Script) -> AsyncIterator[Event]:
        prompt = len(request.prompt_ids)
        yield PromptProgress(prompt, prompt)
        if request.prompt_logprobs_from is not None:
            yield PromptScores(_prompt_scores(request, request.prompt_logprobs_from))
        budget = min(request.max_tokens, self._info.context_tokens - prompt)
        said, reason, stop_id = 0, FinishReason.LENGTH, None
        groups = self._groups(request, script, budget)
        async for group in self._paced(list(groups) if self._plan_script.burst else groups):
            said += len(group)
            yield Tokens(group, _scores(request, group))
            if group[-1] in request.stop_ids and said > request.min_tokens:
                reason, stop_id = FinishReason.STOP, group[-1]
        if script.error is not None:
            yield Failed(script.error)
            return
        yield Done(reason, prompt, said, stop_id=stop_id)

    def _groups(
        self, request: GenRequest, script: Script, budget: int
    ) -> Iterator[tuple[int, ...]]:
        """The script's groups up to the budget or a stop id; from the start again if none may stop."""
        said = 0
        for group in self._endless(request, script):
            cut = group[: budget - said]
            for length, token_id in enumerate(cut, start=1):
                if token_id in request.stop_ids and said + length > request.min_tokens:
                    yield cut[:length]
                    return
            if cut:
                yield cut
            said += len(cut)
            if said >= budget:
                return

    def _endless(self, request: GenRequest, script: Script) -> Iterator[tuple[int, ...]]:
        if script.end is FinishReason.LENGTH or script.error is not None:
            return iter(script.groups)
        if self._end_id in request.stop_ids:
            spoken = sum(len(group) for group in script.groups)
            rounds = max(1, -(-request.min_tokens // max(1, spoken)))
            repeated = islice(cycle(script.groups), rounds * len(script.groups))
            return chain(repeated, [(self._end_id,)])
        return cycle(script.groups or ((self._end_id,),))

    async def _paced(
        self, groups: Iterator[tuple[int, ...]] | list[tuple[int, ...]]
    ) -> AsyncIterator[tuple[int, ...]]:
        """Deliver groups on schedule; in a burst, wait for all of them and deliver one."""
        script, rate = self._plan_script, self._plan_script.tokens_per_s
        start, said, kept = time.monotonic(), 0, list[int]()
        for group in groups:
            said += len(group)
            wait_s = start + said / rate - time.monotonic() if rate else 0.0
            await self._pause(max(0.0, wait_s))
            self._steps += 1
            if script.crash_after_tokens is not None and self._steps > script.crash_after_tokens:
                os._exit(ChildExit.CRASH)
            if script.hang_after_tokens is not None and self._steps > script.hang_after_tokens:
                await self._pause(None)
            if script.burst:
                kept += group
            else:
                yield group
        if kept:
            yield tuple(kept)

    async def _pause(self, wait_s: float | None) -> None:
        """Sleep; forever for None. Raises EngineError when the engine is closed meanwhile."""
        if wait_s == 0:
            await asyncio.sleep(0)
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._closed.wait()
        if self._closed.is_set():
            raise EngineError(
                "the server is shutting down", status=503, code="server_shutting_down"
            )


def _scores(request: GenRequest, group: tuple[int, ...]) -> tuple[TokenScore, ...]:
    if not request.logprobs:
        return ()
    return tuple(_score(request, token_id) for token_id in group)


def _score(request: GenRequest, token_id: int) -> TokenScore:
    others = (i for i in range(request.top_logprobs + 1) if i != token_id)
    top = chain([(token_id, _SURE)], ((i, _NEVER) for i in others))
    asked = tuple((i, _SURE if i == token_id else _NEVER) for i in request.logprob_ids)
    return TokenScore(token_id, _SURE, tuple(islice(top, request.top_logprobs)), asked)


def _prompt_scores(request: GenRequest, start: int) -> tuple[TokenScore, ...]:
    scores = [_score(request, token_id) for token_id in request.prompt_ids[start:]]
    if start == 0 and scores:
        scores[0] = replace(scores[0], logprob=None, top=(), asked=())
    return tuple(scores)
