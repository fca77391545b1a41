"""What requests have in common, and OpenAI's error and model shapes. Unknown fields are let through.

`None` always means "not set": many clients send null for what they do not use.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool


class Request(BaseModel):
    """A request body. Fields it does not know are kept apart, so that they can be logged."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, protected_namespaces=())


class Response(BaseModel):
    """A response body; here the schema is a promise."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


def _absent(value: object) -> object:
    """-1 means "not set" to clients of other local servers."""
    return None if value == -1 else value


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


TokenLimit = Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(_absent)]
StopString = Annotated[str, Field(min_length=1, max_length=256)]
StopStrings = Annotated[
    Annotated[list[StopString], Field(max_length=16)] | None, BeforeValidator(_listed)
]
Bias = Annotated[float, Field(ge=-100, le=100)]
LogitBias = Annotated[dict[str, Bias], Field(max_length=1024)] | None
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class StreamOptions(Request):
    include_usage: StrictBool | None = None
    continuous_usage_stats: StrictBool | None = None


class SamplingFields(Request):
    """Sampling and stopping, the same on every OpenAI-shaped endpoint."""

    model: Any = None
    max_tokens: TokenLimit = None
    n: Annotated[int, Field(ge=1, le=8)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    logit_bias: LogitBias = None
    stop: StopStrings = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = None
    include_stop_str_in_output: StrictBool | None = None
    no_stop_trim: StrictBool | None = None
    skip_special_tokens: StrictBool | None = None
    ignore_eos: StrictBool | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None


class PromptTokensDetails(Response):
    cached_tokens: int


class CompletionTokensDetails(Response):
    reasoning_tokens: int


class UsageBody(Response):
    """OpenAI's usage object."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class ErrorDetail(Response):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Response):
    """Every error of this server."""

    error: ErrorDetail


class Capabilities(Response):
    tools: bool
    reasoning: bool
    json_schema: bool


class ModelCard(Response):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    context_length: int
    context_window: int
    max_output_tokens: int
    capabilities: Capabilities
    permission: list[dict[str, Any]]


class ModelList(Response):
    object: Literal["list"]
    data: list[ModelCard]
