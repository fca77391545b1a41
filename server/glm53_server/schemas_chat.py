"""`/v1/chat/completions`: request and response bodies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool

from glm53_server.schemas import Request, Response, SamplingFields, TokenLimit, UsageBody


class ContentPart(Request):
    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(Request):
    name: str
    arguments: Any = None  # a JSON string, an object, or what a model once left behind


class MessageToolCall(Request):
    id: str | None = None
    type: str | None = None
    function: FunctionCall


class ChatMessage(Request):
    role: str
    content: str | list[ContentPart | str] | dict[str, Any] | float | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None


class NamedFunction(Request):
    name: str


class NamedToolChoice(Request):
    type: Literal["function"]
    function: NamedFunction


class TemplateOptions(Request):
    """`chat_template_kwargs`: the only variables of the chat template a request may set."""

    enable_thinking: StrictBool | None = None
    thinking: StrictBool | None = None
    reasoning_effort: str | None = None
    clear_thinking: StrictBool | None = None


class JsonSchemaFormat(Request):
    name: str | None = None
    schema_: Annotated[dict[str, Any] | StrictBool | None, Field(alias="schema")] = None
    strict: StrictBool | None = None


class ResponseFormat(Request):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class ReasoningOptions(Request):
    effort: str | None = None


class ThinkingOptions(Request):
    type: str | None = None


class StructuredOutputs(Request):
    """vLLM's constraint object."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[list[str], Field(max_length=256)] | None = None
    grammar: str | None = None


class GuidedFields(Request):
    """Constraints on the output under their several names; at most one may be set."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(max_length=256)] | None = None
    guided_grammar: str | None = None


class ChatRequest(SamplingFields, GuidedFields):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=10000)]
    max_completion_tokens: TokenLimit = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=256)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: StrictBool | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningOptions | None = None
    thinking: ThinkingOptions | None = None
    include_reasoning: StrictBool | None = None
    separate_reasoning: StrictBool | None = None
    enable_thinking: StrictBool | None = None
    chat_template_kwargs: TemplateOptions | None = None
    add_generation_prompt: StrictBool | None = None
    continue_final_message: StrictBool | None = None


class CallFunction(Response):
    name: str
    arguments: str


class CallBody(Response):
    id: str
    type: Literal["function"]
    function: CallFunction


class AnswerMessage(Response):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: str | None = None
    tool_calls: list[CallBody] | None = None


class TopLogprob(Response):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Response):
    content: list[TokenLogprob]
    refusal: None


class ChatChoice(Response):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(Response):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageBody
