"""Responses input in our chat request's terms. Pure; this server keeps no conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from glm53_server.api_errors import ApiError, invalid, unsupported
from glm53_server.conversation import as_chat_request
from glm53_server.schemas_chat import ChatRequest
from glm53_server.schemas_responses import NamedChoice, ResponsesRequest

# Items that record what a hosted service did; they hold nothing a model reads.
_RECORDS = {"web_search_call", "file_search_call", "image_generation_call", "code_interpreter_call"}

_NEEDS_STORE = ("conversation", "prompt")


def chat_request(body: ResponsesRequest) -> ChatRequest:
    """The chat request that means the same. Raises ApiError for what needs stored state."""
    if body.previous_response_id is not None:
        raise unsupported("previous_response_id", "responses are not stored; send the whole input")
    if body.background:
        raise unsupported("background", "responses are not stored")
    for name in _NEEDS_STORE:
        if (body.model_extra or {}).get(name) is not None:
            raise unsupported(name, "nothing is stored here; send the whole input")
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
    else:
        messages += _messages(body.input)
    choice: object = body.tool_choice
    if isinstance(choice, NamedChoice):
        choice = {"type": "function", "function": {"name": choice.name}}
    fields: dict[str, Any] = {
        "messages": messages,
        "max_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "tools": function_tools(body),
        "tool_choice": choice,
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        "response_format": _format(body),
    }
    return as_chat_request(fields, "input")


def function_tools(body: ResponsesRequest) -> list[dict[str, Any]]:
    """The function tools in chat form; tools only a hosted service can run are left out."""
    found: list[dict[str, Any]] = []
    for tool in body.tools or ():
        if tool.get("type") == "function":
            shown = {k: v for k, v in tool.items() if k != "type"}
            found.append({"type": "function", "function": shown})
    return found


def _messages(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for i, item in enumerate(items):
        where = f"input[{i}]"
        match item.get("type", "message"):
            case "message":
                messages.append(_message(item, messages))
            case "function_call" | "custom_tool_call":
                _assistant(messages).setdefault("tool_calls", []).append(_call(item))
            case "function_call_output" | "custom_tool_call_output":
                messages.append(_result(item))
            case "reasoning":
                _assistant(messages, fresh=True)["reasoning_content"] = _reasoning(item)
            case kind if kind in _RECORDS:
                pass
            case kind:
                raise ApiError(
                    f"{where}: items of type {str(kind)[:40]!r} are not supported",
                    400,
                    "unsupported_parameter",
                    f"{where}.type",
                )
    if not messages:
        raise invalid("input holds nothing to answer", "input")
    return messages


def _message(item: Mapping[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
    message = {"role": item.get("role"), "content": item.get("content")}
    if message["role"] == "assistant" and messages and messages[-1].get("content") is None:
        return messages.pop() | message  # its reasoning came before it
    return message


def _assistant(messages: list[dict[str, Any]], *, fresh: bool = False) -> dict[str, Any]:
    """The assistant message that the next item belongs to."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or (fresh and last.get("content") is not None):
        last = {"role": "assistant", "content": None}
        messages.append(last)
    return last


def _call(item: Mapping[str, Any]) -> dict[str, Any]:
    arguments = item.get("arguments", item.get("input"))
    function = {"name": item.get("name"), "arguments": arguments}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _result(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}


def _reasoning(item: Mapping[str, Any]) -> str:
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list):
        return ""
    texts = [part.get("text") for part in cast(list[Any], parts) if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def _format(body: ResponsesRequest) -> dict[str, Any] | None:
    asked = body.text.format if body.text is not None else None
    if asked is None:
        return None
    if asked.type != "json_schema":
        return {"type": asked.type}
    return {"type": "json_schema", "json_schema": {"name": asked.name, "schema": asked.schema_}}
