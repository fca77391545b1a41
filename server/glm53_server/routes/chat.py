"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from glm53_server import api_errors
from glm53_server.api_errors import ApiError
from glm53_server.chat.parser import CallArguments, CallStart, Reasoning
from glm53_server.conversation import prepare
from glm53_server.engine.base import PromptScores
from glm53_server.fold import Answer, call_id, chat_logprobs, fold, usage_body
from glm53_server.pipeline import Finish, OutputEvent, TextDelta, Usage
from glm53_server.schemas_chat import ChatCompletion, ChatRequest
from glm53_server.service import Service, service_of
from glm53_server.sse import DONE, PING, EventStream, frame, whole

from .base import GenerationRoute, request_id

router = APIRouter(route_class=GenerationRoute)


@router.post("/v1/chat/completions", response_model=ChatCompletion, tags=["openai"])
async def create_chat_completion(request: Request, body: ChatRequest) -> Response:
    """Answer a conversation; with `stream` as server-sent `chat.completion.chunk` events."""
    service, identity = service_of(request), request_id(request)
    choices = await prepare(service, body, identity)
    generation = service.generation(choices)
    shape = ChatShape(service, body, f"chatcmpl-{identity}")
    if body.stream:
        return EventStream(generation, ChatEncoder(shape, len(choices)))
    return JSONResponse(shape.whole([fold(e) for e in await whole(request, generation)]))


class ChatShape:
    """The parts of an answer that do not depend on its content."""

    def __init__(self, service: Service, body: ChatRequest, identity: str) -> None:
        self.tokenizer = service.tokenizer
        self.logprobs = bool(body.logprobs)
        self.reasoning = (
            body.include_reasoning is not False and body.separate_reasoning is not False
        )
        options = body.stream_options
        self.usage = bool(options and options.include_usage)
        self._head = {
            "id": identity,
            "created": int(time.time()),
            "model": service.served_name,
            "system_fingerprint": f"glm53-{service.engine.info.engine}",
        }

    def head(self, kind: str) -> dict[str, Any]:
        return {"object": kind, **self._head}

    def whole(self, answers: list[Answer]) -> dict[str, Any]:
        return {
            **self.head("chat.completion"),
            "choices": [self._choice(i, answer) for i, answer in enumerate(answers)],
            "usage": usage_body([answer.finish.usage for answer in answers]),
        }

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        nothing = None if answer.calls or answer.reasoning else ""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.text or nothing,
            "refusal": None,
        }
        if answer.reasoning and self.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in answer.calls
            ]
        logprobs = chat_logprobs(self.tokenizer, answer.scores) if self.logprobs else None
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": answer.finish.reason,
        }


class ChatEncoder:
    """Writes `chat.completion.chunk` frames."""

    ping = PING

    def __init__(self, shape: ChatShape, choices: int) -> None:
        self._shape = shape
        self._head = shape.head("chat.completion.chunk")
        self._usages: list[Usage | None] = [None] * choices

    def start(self) -> bytes:
        roles = [{"role": "assistant", "content": ""} for _ in self._usages]
        return b"".join(self._chunk(index, delta) for index, delta in enumerate(roles))

    def event(self, index: int, event: OutputEvent | PromptScores) -> bytes:
        match event:
            case Reasoning(text):
                if not self._shape.reasoning:
                    return b""
                return self._chunk(index, {"reasoning_content": text})
            case TextDelta(text, scores):
                logprobs = chat_logprobs(self._shape.tokenizer, scores) if scores else None
                return self._chunk(index, {"content": text}, logprobs)
            case CallStart(call, name):
                function = {"name": name, "arguments": ""}
                opened = {"index": call, "id": call_id(), "type": "function", "function": function}
                return self._chunk(index, {"tool_calls": [opened]})
            case CallArguments(call, text):
                more = {"index": call, "function": {"arguments": text}}
                return self._chunk(index, {"tool_calls": [more]})
            case Finish(reason, usage):
                self._usages[index] = usage
                return self._chunk(index, {}, None, reason)
            case _:
                return b""

    def end(self) -> bytes:
        if not self._shape.usage:
            return DONE
        usage = usage_body([usage for usage in self._usages if usage is not None])
        return frame({**self._head, "choices": [], "usage": usage}) + DONE

    def failed(self, error: ApiError) -> bytes:
        return frame(error.body()) + DONE

    def error_response(self, error: ApiError) -> Response:
        return api_errors.response(error)

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        reason: str | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        chunk = {**self._head, "choices": [choice]}
        return frame({**chunk, "usage": None} if self._shape.usage else chunk)
