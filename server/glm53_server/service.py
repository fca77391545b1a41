"""What the routes share: the engine, the plan, the tokenizer, the counters; and what may be admitted.

One per app, in `app.state.service`. Long work on a prompt runs in a thread; the event loop only waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request

from glm53_server.api_errors import ApiError
from glm53_server.chat.markers import PromptPiece
from glm53_server.engine.base import Engine, EngineState, Grammar
from glm53_server.generation import Choice, Generation
from glm53_server.grammar_check import GrammarChecker
from glm53_server.metrics import Metrics
from glm53_server.parameters import ContextOverflow
from glm53_server.tokenizer import Tokenizer
from glm53ctl.plan import Plan

log = logging.getLogger("glm53_server")
T = TypeVar("T")

THREAD_FROM_CHARS = 2000  # shorter prompts are encoded sooner than a thread is woken
RETRY_AFTER_S = 2
MAX_CHARS_PER_TOKEN = 64  # no ordinary text packs more into a token


@dataclass(slots=True)
class Service:
    """State of one app. `created` is the Unix time shown on the model card."""

    engine: Engine
    plan: Plan
    tokenizer: Tokenizer
    grammars: GrammarChecker
    metrics: Metrics = field(default_factory=Metrics)
    created: int = field(default_factory=lambda: int(time.time()))
    started_s: float = field(default_factory=time.monotonic)
    draining: bool = False

    @property
    def served_name(self) -> str:
        return self.engine.info.served_name

    @property
    def ready(self) -> bool:
        """True while new requests are taken."""
        return not self.draining and self.engine.state in {EngineState.READY, EngineState.DEGRADED}

    def begin_drain(self) -> None:
        """Refuse new requests and let running ones end; for the process that was asked to stop."""
        self.draining = True

    def require_room(self, generations: int = 1) -> None:
        """Raise the 503 or 429 that a request for so many generations gets now."""
        if self.draining:
            raise ApiError(
                "the server is shutting down", 503, "server_shutting_down", None, RETRY_AFTER_S
            )
        if not self.ready:
            state = self.engine.state.value
            raise ApiError(f"the engine is {state}", 503, "engine_unavailable", None, RETRY_AFTER_S)
        limit = self.engine.info.max_batch + self.plan.limits.max_queued
        if self.metrics.in_flight + generations > limit:
            message = (
                f"{self.metrics.in_flight} requests are running or queued; the limit is {limit}"
            )
            raise ApiError(message, 429, "queue_full", None, RETRY_AFTER_S)

    def require_plausible(self, chars: int, param: str) -> None:
        """Refuse, before encoding it, a prompt far longer than the context can hold."""
        limit = self.engine.info.context_tokens
        if chars > MAX_CHARS_PER_TOKEN * limit:
            raise ContextOverflow(chars // MAX_CHARS_PER_TOKEN, limit, param)

    def generation(self, choices: Sequence[Choice]) -> Generation:
        """Admit these choices. Raises ApiError when there is no room."""
        self.require_room(len(choices))
        return Generation(self.engine, choices, self.metrics)

    async def check_grammar(self, grammar: Grammar, param: str) -> None:
        """Raises ApiError(400) naming `param` for a grammar that cannot be used."""
        await self.grammars.check(grammar, param)

    async def encode(self, pieces: Sequence[PromptPiece]) -> tuple[int, ...]:
        """Ids of a rendered prompt."""
        chars = sum(len(piece) for piece in pieces if isinstance(piece, str))
        return tuple(await self.off_loop(chars, lambda: self.tokenizer.encode(pieces)))

    async def encode_raw(self, text: str) -> tuple[int, ...]:
        """Ids of a raw prompt, in which control tokens are recognised."""
        return tuple(await self.off_loop(len(text), lambda: self.tokenizer.encode_raw(text)))

    async def off_loop(self, chars: int, work: Callable[[], T]) -> T:
        """Run `work` on text of so many characters, in a thread when that may take long."""
        return work() if chars < THREAD_FROM_CHARS else await asyncio.to_thread(work)


def service_of(request: Request) -> Service:
    """The app's service."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
