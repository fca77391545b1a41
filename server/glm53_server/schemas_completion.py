"""`/v1/completions`: request and response bodies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool

from glm53_server.schemas import Response, SamplingFields, TokenId, UsageBody
from glm53_server.schemas_chat import GuidedFields

MAX_PROMPTS = 32


class CompletionRequest(SamplingFields, GuidedFields):
    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[
            list[Annotated[list[TokenId], Field(min_length=1)]],
            Field(min_length=1, max_length=MAX_PROMPTS),
        ]
    )
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: StrictBool | None = None
    best_of: Annotated[int, Field(ge=1, le=8)] | None = None


class CompletionLogprobs(Response):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Response):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: Any = None


class Completion(Response):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageBody
