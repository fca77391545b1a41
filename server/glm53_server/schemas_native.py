"""SGLang's `/generate`, and `/tokenize`, `/detokenize`, `/health`: request and response bodies."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StrictBool

from glm53_server.schemas import (
    LogitBias,
    Request,
    Response,
    StopStrings,
    TokenId,
    TokenLimit,
)
from glm53_server.schemas_chat import ChatMessage, TemplateOptions

MAX_PROMPTS = 32
Ids = Annotated[list[TokenId], Field(min_length=1)]
LogprobEntry = tuple[float, int, str | None]


class SglangSampling(Request):
    max_new_tokens: TokenLimit = None
    min_new_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    stop: StopStrings = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    n: Annotated[int, Field(ge=1, le=8)] | None = None
    ignore_eos: StrictBool | None = None
    skip_special_tokens: StrictBool | None = None
    no_stop_trim: StrictBool | None = None
    sampling_seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    logit_bias: LogitBias = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None


class GenerateRequest(Request):
    text: str | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)] | None = None
    input_ids: Ids | Annotated[list[Ids], Field(min_length=1, max_length=MAX_PROMPTS)] | None = None
    sampling_params: SglangSampling | None = None
    stream: StrictBool | None = None
    return_logprob: StrictBool | None = None
    logprob_start_len: Annotated[int, Field(ge=-1)] | None = None
    top_logprobs_num: Annotated[int, Field(ge=0, le=256)] | None = None
    token_ids_logprob: Annotated[list[TokenId], Field(max_length=1024)] | None = None
    return_text_in_logprobs: StrictBool | None = None
    rid: str | list[str] | None = None


class GenerateMeta(Response):
    id: str
    finish_reason: dict[str, Any] | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    e2e_latency: float
    input_token_logprobs: list[LogprobEntry | None] | None = None
    output_token_logprobs: list[LogprobEntry] | None = None
    input_top_logprobs: list[list[LogprobEntry] | None] | None = None
    output_top_logprobs: list[list[LogprobEntry]] | None = None
    input_token_ids_logprobs: list[list[LogprobEntry] | None] | None = None
    output_token_ids_logprobs: list[list[LogprobEntry]] | None = None


class GenerateResponse(Response):
    text: str
    output_ids: list[int]
    meta_info: GenerateMeta


class TokenizeRequest(Request):
    prompt: str | None = None
    text: str | None = None
    content: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=10000)] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=256)] | None = None
    chat_template_kwargs: TemplateOptions | None = None
    enable_thinking: StrictBool | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: StrictBool | None = None
    parse_special: StrictBool | None = None
    return_token_strs: StrictBool | None = None


class TokenizeResponse(Response):
    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class DetokenizeRequest(Request):
    tokens: Annotated[list[TokenId], Field(max_length=1 << 20)]
    skip_special_tokens: StrictBool | None = None


class DetokenizeResponse(Response):
    text: str
    prompt: str


class Health(Response):
    ok: bool
    status: str
    state: str
