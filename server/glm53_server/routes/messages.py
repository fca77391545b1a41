"""`POST /v1/messages` and `/v1/messages/count_tokens`, in Anthropic's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from glm53_server import api_errors
from glm53_server.anthropic_in import chat_request, parsed_input, wants_thinking
from glm53_server.api_errors import ApiError
from glm53_server.chat.parser import CallArguments, CallEnd, CallStart, Reasoning
from glm53_server.conversation import prepare, render_prompt, tool_rules
from glm53_server.engine.base import PromptScores
from glm53_server.fold import call_id
from glm53_server.parameters import ContextOverflow
from glm53_server.pipeline import Finish, OutputEvent, TextDelta
from glm53_server.schemas_anthropic import (
    CountRequest,
    MessageBody,
    MessagesRequest,
    TokenCount,
)
from glm53_server.service import service_of
from glm53_server.sse import EventStream, frame, whole

from .base import GenerationRoute, JsonRoute, request_id

router = APIRouter(route_class=GenerationRoute, tags=["anthropic"])
count_router = APIRouter(route_class=JsonRoute, tags=["anthropic"])
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


@router.post("/v1/messages", response_model=MessageBody)
async def create_message(request: Request, body: MessagesRequest) -> Response:
    """Answer a conversation; with `stream` as Anthropic's named events."""
    service, identity = service_of(request), request_id(request)
    try:
        choices = await prepare(service, chat_request(body), identity)
    except ContextOverflow as err:
        raise ApiError(
            f"prompt is too long: {err.prompt_tokens} tokens > {err.limit_tokens} maximum"
        ) from err
    generation = service.generation(choices)
    encoder = MessageEncoder(
        f"msg_{identity}",
        service.served_name,
        len(choices[0].request.prompt_ids),
        thinking=wants_thinking(body),
    )
    if body.stream:
        return EventStream(generation, encoder)
    return JSONResponse(encoder.whole((await whole(request, generation))[0]))


@count_router.post("/v1/messages/count_tokens", response_model=TokenCount)
async def count_tokens(request: Request, body: CountRequest) -> dict[str, int]:
    """Tokens of the rendered prompt; nothing is generated."""
    chat = chat_request(body)
    tool_rules(chat)
    return {"input_tokens": len((await render_prompt(service_of(request), chat)).ids)}


class MessageEncoder:
    """Writes Anthropic's events and keeps the blocks they build; one block is open at a time."""

    ping = frame({"type": "ping"}, "ping")

    def __init__(self, identity: str, model: str, prompt_tokens: int, *, thinking: bool) -> None:
        self._message: dict[str, Any] = {
            "id": identity,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(prompt_tokens, 0, 0),
        }
        self._thinking = thinking
        self._blocks: list[dict[str, Any]] = []
        self._open: str | None = None
        self._arguments = ""

    def whole(self, events: Sequence[OutputEvent | PromptScores]) -> dict[str, Any]:
        """The message these events build."""
        for event in events:
            self.event(0, event)
        return {**self._message, "content": self._blocks}

    def start(self) -> bytes:
        return frame({"type": "message_start", "message": self._message}, "message_start")

    def event(self, index: int, event: OutputEvent | PromptScores) -> bytes:
        del index
        match event:
            case Reasoning(text) if self._thinking:
                opened = self._begin({"type": "thinking", "thinking": "", "signature": ""})
                self._blocks[-1]["thinking"] += text
                return opened + self._delta({"type": "thinking_delta", "thinking": text})
            case TextDelta(text):
                opened = self._begin({"type": "text", "text": ""})
                self._blocks[-1]["text"] += text
                return opened + self._delta({"type": "text_delta", "text": text})
            case CallStart(_, name):
                identity = call_id().replace("call_", "toolu_")
                block: dict[str, Any] = {"type": "tool_use", "id": identity, "name": name}
                return self._close() + self._begin({**block, "input": {}})
            case CallArguments(_, text):
                self._arguments += text
                return self._delta({"type": "input_json_delta", "partial_json": text})
            case CallEnd():
                return self._close()
            case Finish():
                return self._close() + self._finish(event)
            case _:
                return b""

    def end(self) -> bytes:
        return frame({"type": "message_stop"}, "message_stop")

    def failed(self, error: ApiError) -> bytes:
        return frame(error.anthropic_body(), "error")

    def error_response(self, error: ApiError) -> Response:
        return api_errors.response(error, anthropic=True)

    def _begin(self, block: dict[str, Any]) -> bytes:
        if self._open == block["type"]:
            return b""
        closed = self._close()
        self._open = block["type"]
        self._blocks.append(dict(block))
        opened = {"index": len(self._blocks) - 1, "content_block": block}
        return closed + frame({"type": "content_block_start", **opened}, "content_block_start")

    def _delta(self, delta: dict[str, Any]) -> bytes:
        shown = {"index": len(self._blocks) - 1, "delta": delta}
        return frame({"type": "content_block_delta", **shown}, "content_block_delta")

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        frames = b""
        if self._open == "thinking":  # clients insist on a signature; there is nothing to sign
            self._blocks[-1]["signature"] = "unsigned"
            frames = self._delta({"type": "signature_delta", "signature": "unsigned"})
        if self._open == "tool_use":
            self._blocks[-1]["input"] = parsed_input(self._arguments)
            self._arguments = ""
        self._open = None
        stopped = {"type": "content_block_stop", "index": len(self._blocks) - 1}
        return frames + frame(stopped, "content_block_stop")

    def _finish(self, finish: Finish) -> bytes:
        matched = finish.matched if isinstance(finish.matched, str) else None
        reason = _REASONS[finish.reason]
        if matched is not None and reason == "end_turn":
            reason = "stop_sequence"
        self._message |= {"stop_reason": reason, "stop_sequence": matched}
        usage = finish.usage
        self._message["usage"] = _usage(usage.prompt, usage.cached, usage.completion)
        delta = {"stop_reason": reason, "stop_sequence": matched}
        shown = {"type": "message_delta", "delta": delta, "usage": self._message["usage"]}
        return frame(shown, "message_delta")


def _usage(prompt: int, cached: int, completion: int) -> dict[str, int]:
    return {
        "input_tokens": prompt - cached,
        "output_tokens": completion,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
    }
