"""A chat request to engine choices: messages to a prompt, options to constraints and a parser.

The one path for every chat-shaped endpoint; the other APIs translate their bodies to a ChatRequest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from glm53_server.api_errors import from_validation, invalid, unsupported
from glm53_server.chat.arguments import Schema
from glm53_server.chat.markers import Marker, PromptPiece
from glm53_server.chat.messages import Message, Role
from glm53_server.chat.normalise import normalise_messages, normalise_tools
from glm53_server.chat.parser import OutputParser
from glm53_server.chat.template import Tail, ends_in_reasoning, render
from glm53_server.generation import Choice
from glm53_server.guides import chat_grammar
from glm53_server.parameters import (
    Asked,
    engine_requests,
    output_options,
    refuse_unsupported,
)
from glm53_server.pipeline import ChoicePipeline
from glm53_server.schemas_chat import ChatRequest, NamedToolChoice, TemplateOptions
from glm53_server.service import Service

# What clients of other models send, in this model's three steps; anything else is the maximum.
_EFFORT = {"minimal": "low", "low": "low", "medium": "high", "high": "high"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation. `reasoning`: its output starts inside the reasoning."""

    ids: tuple[int, ...]
    reasoning: bool


@dataclass(frozen=True, slots=True)
class ToolRules:
    """The tools on offer, and what `tool_choice` makes of them."""

    offered: dict[str, Schema | None]
    must_call: tuple[str, ...] = ()  # one of these names has to be called
    forbidden: bool = False

    @property
    def active(self) -> dict[str, Schema | None] | None:
        return self.offered if self.offered and not self.forbidden else None


def as_chat_request(fields: Mapping[str, Any], messages_param: str = "messages") -> ChatRequest:
    """A chat request from another API's fields. Raises ApiError in that API's words."""
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as err:
        found = from_validation(err.errors())
        raise invalid(
            found.message.replace("messages", messages_param, 1),
            (found.param or "").replace("messages", messages_param, 1) or None,
        ) from err


async def render_prompt(service: Service, body: ChatRequest) -> Prompt:
    """Render and encode off the event loop. Raises ApiError for what cannot be rendered."""
    chars = sum(_chars(message.content) for message in body.messages)
    pieces = await service.off_loop(chars, lambda: _pieces(body))
    service.require_plausible(sum(len(p) for p in pieces if isinstance(p, str)), "messages")
    return Prompt(await service.encode(pieces), ends_in_reasoning(pieces))


async def prepare(service: Service, body: ChatRequest, request_id: str) -> list[Choice]:
    """The choices of a chat request, ready to run. Raises ApiError."""
    refuse_unsupported(body)
    rules = tool_rules(body)
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs needs logprobs to be true", "top_logprobs")
    wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if wanted == 0:
        raise invalid("max_tokens must be at least 1", "max_tokens")
    prompt = await render_prompt(service, body)
    tokenizer, info = service.tokenizer, service.engine.info
    call_marker = tokenizer.id_of(Marker.CALL.value)
    banned = frozenset({call_marker} if rules.forbidden and call_marker is not None else ())
    asked = Asked(
        max_tokens=wanted,
        stop_ids=info.eos_ids | tokenizer.turn_end_ids,
        prompt_param="messages",
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs or 0,
        grammar=await chat_grammar(
            service,
            body,
            must_call=rules.must_call,
            tools=rules.offered,
            reasoning=prompt.reasoning,
        ),
        banned=banned,
    )
    options = output_options(body, one_call=body.parallel_tool_calls is False)
    return [
        Choice(
            request,
            ChoicePipeline(
                tokenizer,
                request,
                options,
                OutputParser(reasoning=prompt.reasoning, tools=rules.active),
            ),
        )
        for request in engine_requests(request_id, prompt.ids, body, info, asked)
    ]


def tool_rules(body: ChatRequest) -> ToolRules:
    """Check `tools` and `tool_choice` against each other."""
    offered = normalise_tools(body.tools or ())
    match body.tool_choice:
        case NamedToolChoice(function=function):
            if function.name not in offered:
                raise invalid("tool_choice names a function that is not in tools", "tool_choice")
            return ToolRules(offered, (function.name,))
        case "required":
            if not offered:
                raise invalid("tool_choice 'required' needs tools", "tool_choice")
            return ToolRules(offered, tuple(offered))
        case "none":
            return ToolRules(offered, forbidden=True)
        case _:
            return ToolRules(offered)


def _pieces(body: ChatRequest) -> list[PromptPiece]:
    options = body.chat_template_kwargs or TemplateOptions()
    for name in options.model_extra or ():
        raise unsupported("chat_template_kwargs", f"unknown template variable {name[:40]!r}")
    messages = normalise_messages(body.messages)
    effort = _effort(body)
    # A variable of the template is more explicit than the field of the same name beside it.
    enabled = body.enable_thinking if options.enable_thinking is None else options.enable_thinking
    thinking = enabled is not False and options.thinking is not False
    disabled = body.thinking is not None and body.thinking.type == "disabled"
    return render(
        messages,
        tools=body.tools or (),
        effort=options.reasoning_effort if effort is None else _EFFORT.get(effort, "max"),
        clear_thinking=options.clear_thinking,
        tail=_tail(body, messages, thinking=thinking and not disabled and effort != "none"),
    )


def _effort(body: ChatRequest) -> str | None:
    if body.reasoning_effort is not None:
        return body.reasoning_effort
    return body.reasoning.effort if body.reasoning is not None else None


def _tail(body: ChatRequest, messages: list[Message], *, thinking: bool) -> Tail:
    if body.continue_final_message:
        if body.add_generation_prompt:
            raise invalid(
                "continue_final_message and add_generation_prompt exclude each other",
                "continue_final_message",
            )
        if messages[-1].role is not Role.ASSISTANT or messages[-1].calls:
            raise invalid(
                "continue_final_message needs a last message of role 'assistant' with text",
                "continue_final_message",
            )
        return Tail.CONTINUE
    if body.add_generation_prompt is False:
        return Tail.NONE
    return Tail.THINK if thinking else Tail.NO_THINK


def _chars(content: object) -> int:
    return len(content) if isinstance(content, str) else 2000
