"""`/v1/messages`: Anthropic's request and response bodies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool

from glm53_server.schemas import Request, Response, StopString


class Block(Request):
    """A content block of any type; which fields matter depends on `type`."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: StrictBool | None = None


class InputMessage(Request):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Thinking(Request):
    type: str
    budget_tokens: int | None = None


class ToolChoice(Request):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: StrictBool | None = None


class OutputConfig(Request):
    effort: str | None = None


class CountRequest(Request):
    model: Any = None
    messages: Annotated[list[InputMessage], Field(min_length=1, max_length=10000)]
    system: str | list[Block] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=256)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountRequest):
    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: Annotated[list[StopString], Field(max_length=16)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    stream: StrictBool | None = None


class MessageUsage(Response):
    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int


class MessageBody(Response):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(Response):
    input_tokens: int


class AnthropicErrorDetail(Response):
    type: str
    message: str


class AnthropicErrorBody(Response):
    type: Literal["error"]
    error: AnthropicErrorDetail
