"""A response under construction: output events in, Responses events out, items kept for the end.

Whole answers run the same builder and drop its frames, so both forms are one.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from glm53_server import api_errors
from glm53_server.api_errors import ApiError
from glm53_server.chat.parser import CallArguments, CallEnd, CallStart, Reasoning
from glm53_server.engine.base import PromptScores
from glm53_server.fold import call_id
from glm53_server.pipeline import Finish, OutputEvent, TextDelta, Usage
from glm53_server.schemas_responses import ResponsesRequest
from glm53_server.sse import PING, frame

_PREFIX = {"reasoning": "rs", "message": "msg", "function_call": "fc"}


class ResponseEncoder:
    """Writes Responses events; one item is open at a time."""

    ping = PING

    def __init__(self, identity: str, model: str, body: ResponsesRequest) -> None:
        self.response = _skeleton(identity, model, body)
        self._items: list[dict[str, Any]] = self.response["output"]
        self._open: str | None = None
        self._text = ""
        self._sequence = 0

    def whole(self, events: Sequence[OutputEvent | PromptScores]) -> dict[str, Any]:
        """The response these events build."""
        for event in events:
            self.event(0, event)
        return self.response

    def start(self) -> bytes:
        shown = {"response": self.response}
        return self._frame("response.created", shown) + self._frame("response.in_progress", shown)

    def event(self, index: int, event: OutputEvent | PromptScores) -> bytes:
        del index
        match event:
            case Reasoning(text):
                return self._begin("reasoning", {"summary": [], "content": []}) + self._more(
                    "response.reasoning_text.delta", text, {"content_index": 0}
                )
            case TextDelta(text):
                return self._begin_message() + self._more(
                    "response.output_text.delta", text, {"content_index": 0, "logprobs": []}
                )
            case CallStart(_, name):
                head = {"call_id": call_id(), "name": name, "arguments": ""}
                return self._close() + self._begin("function_call", head)
            case CallArguments(_, text):
                return self._more("response.function_call_arguments.delta", text, {})
            case CallEnd():
                return self._close()
            case Finish():
                return self._finish(event)
            case _:
                return b""

    def end(self) -> bytes:
        return self._frame(f"response.{self.response['status']}", {"response": self.response})

    def failed(self, error: ApiError) -> bytes:
        detail = {"code": error.code or "server_error", "message": error.message}
        self.response |= {"status": "failed", "error": detail}
        return self._frame("response.failed", {"response": self.response})

    def error_response(self, error: ApiError) -> Response:
        return api_errors.response(error)

    def _begin_message(self) -> bytes:
        if self._open == "message":
            return b""
        opened = self._begin("message", {"role": "assistant", "content": []})
        part = {"content_index": 0, "part": _text_part("")}
        return opened + self._frame("response.content_part.added", self._place() | part)

    def _begin(self, kind: str, fields: dict[str, Any]) -> bytes:
        if self._open == kind:
            return b""
        closed = self._close()
        self._open = kind
        identity = f"{_PREFIX[kind]}_{secrets.token_hex(12)}"
        item = {"id": identity, "type": kind, "status": "in_progress", **fields}
        self._items.append(item)
        shown = {"output_index": len(self._items) - 1, "item": item}
        return closed + self._frame("response.output_item.added", shown)

    def _more(self, name: str, text: str, fields: dict[str, Any]) -> bytes:
        self._text += text
        return self._frame(name, self._place() | {"delta": text} | fields)

    def _close(self, status: str = "completed") -> bytes:
        if self._open is None:
            return b""
        kind, text = self._open, self._text
        self._open, self._text = None, ""
        item, place = self._items[-1], self._place()
        item["status"] = status
        frames = b""
        match kind:
            case "reasoning":
                item["content"] = [{"type": "reasoning_text", "text": text}]
                done = {"content_index": 0, "text": text}
                frames = self._frame("response.reasoning_text.done", place | done)
            case "message":
                item["content"] = [_text_part(text)]
                done = {"content_index": 0, "text": text, "logprobs": []}
                frames = self._frame("response.output_text.done", place | done)
                part = {"content_index": 0, "part": _text_part(text)}
                frames += self._frame("response.content_part.done", place | part)
            case _:
                item["arguments"] = text
                done = {"arguments": text, "name": item["name"]}
                frames = self._frame("response.function_call_arguments.done", place | done)
        shown = {"output_index": len(self._items) - 1, "item": item}
        return frames + self._frame("response.output_item.done", shown)

    def _finish(self, finish: Finish) -> bytes:
        cut = finish.reason == "length"
        frames = self._close("incomplete" if cut else "completed")
        self.response["status"] = "incomplete" if cut else "completed"
        if cut:
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        self.response["usage"] = _usage(finish.usage)
        return frames

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _frame(self, name: str, fields: dict[str, Any]) -> bytes:
        numbered = {"type": name, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return frame(numbered, name)


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }


def _skeleton(identity: str, model: str, body: ResponsesRequest) -> dict[str, Any]:
    choice = body.tool_choice
    shown = choice if isinstance(choice, str) or choice is None else choice.model_dump()
    return {
        "id": identity,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata if isinstance(body.metadata, dict) else {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        "store": False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": _shown_format(body)},
        "tool_choice": shown or "auto",
        "tools": body.tools or [],
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def _shown_format(body: ResponsesRequest) -> dict[str, Any]:
    if body.text is None or body.text.format is None:
        return {"type": "text"}
    return body.text.format.model_dump(by_alias=True, exclude_none=True)
