"""What every engine implements, and the values that cross between HTTP and an engine.

HTTP -> engine is one GenRequest; engine -> HTTP is a stream of events that ends with exactly one
Done or Failed. Engines deal in token ids only: text, stop strings, reasoning and tool parsing belong
to the server's output pipeline.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

Progress = Callable[[str, int, int], None]  # (phase, done, total) of a load


class FinishReason(StrEnum):
    STOP = "stop"  # a stop id was produced
    LENGTH = "length"  # max_tokens or the end of the context
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 switch a filter off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on the output, as llguidance takes it. It starts after `start_after_id`, if set."""

    kind: str  # "json_schema" | "regex" | "lark"
    text: str
    start_after_id: int | None = None


@dataclass(frozen=True, slots=True)
class GenRequest:
    """One generation.

    `max_tokens` counts every generated id, stop ids included, and is exact. `top_logprobs` > 0 asks
    for that many alternatives per generated token. `prompt_logprobs_from` asks for the teacher-forced
    distribution that predicts each prompt token from that position on (position 0 has none);
    `logprob_ids` are ids whose log-probability is reported at every scored position as well.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs_from: int | None = None
    logprob_ids: tuple[int, ...] = ()
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class TokenScore:
    """Log-probabilities (natural log, raw model distribution) at one position."""

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()  # (id, logprob), best first
    asked: tuple[tuple[int, float], ...] = ()  # the request's logprob_ids


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """Prefill progress, at most a few times a second."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Scores of prompt positions, in order; sent once, before the first Tokens event."""

    scores: tuple[TokenScore, ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """One or more generated ids, in order, stop id included. `scores` has one entry per id if asked for."""

    ids: tuple[int, ...]
    scores: tuple[TokenScore, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """The generation ended. `stop_id` is the id that ended it, when one did."""

    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    stop_id: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The generation failed; `error` says why in words for the client. The engine may go on."""

    error: EngineError


Event = PromptProgress | PromptScores | Tokens | Done | Failed


class EngineError(Exception):
    """A failure of the engine. `status` is the HTTP status, `code` OpenAI's error code.

    `param` names the request field at fault, if one is.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 500,
        code: str = "engine_error",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param


class EngineState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    DEGRADED = "degraded"  # serving, with a part switched off (see stats)
    LOST = "lost"  # cannot go on; the process should be restarted


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Constants of a loaded engine. `vocab_size` counts embedding rows, `context_tokens` prompt + output."""

    engine: str
    model_path: str
    served_name: str
    context_tokens: int
    vocab_size: int
    eos_ids: frozenset[int]
    max_batch: int
    details: Mapping[str, object] = field(default_factory=dict[str, object])


class Engine(Protocol):
    """A loaded model that generates.

    All methods are called from the event-loop thread and never block it. An engine owns its own
    thread(s); after `close` returns, none is left.
    """

    @property
    def info(self) -> EngineInfo: ...

    @property
    def state(self) -> EngineState: ...

    @property
    def steps(self) -> int:
        """Forward passes so far: grows while the engine makes progress. The watchdog compares it."""
        ...

    @property
    def running(self) -> int:
        """Requests being computed now."""
        ...

    @property
    def queued(self) -> int:
        """Requests accepted and waiting."""
        ...

    def submit(self, request: GenRequest) -> AsyncIterator[Event]:
        """Start a generation and yield its events, ending with Done or Failed.

        Closing the iterator early (aclose, or cancelling the task that reads it) cancels the
        generation; the engine frees its place within one forward pass.
        """
        ...

    def stats(self) -> dict[str, object]:
        """Counters for /stats, JSON-ready. Cheap; may be a forward pass old."""
        ...

    async def close(self) -> None:
        """Cancel everything, free the model, join the threads. Idempotent."""
        ...
