"""`/v1/responses`: request and response bodies of the stateless part."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool

from glm53_server.schemas import Request, Response, TokenLimit


class TextFormat(Request):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: StrictBool | None = None


class TextOptions(Request):
    format: TextFormat | None = None


class Effort(Request):
    effort: str | None = None


class NamedChoice(Request):
    type: Literal["function"]
    name: str


class ResponsesRequest(Request):
    model: Any = None
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=10000)]
    instructions: str | None = None
    max_output_tokens: TokenLimit = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=256)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: StrictBool | None = None
    reasoning: Effort | None = None
    text: TextOptions | None = None
    stream: StrictBool | None = None
    previous_response_id: str | None = None
    background: StrictBool | None = None
    metadata: Any = None


class InputDetails(Response):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Response):
    reasoning_tokens: int


class ResponsesUsage(Response):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseBody(Response):
    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, Any]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponsesUsage | None
