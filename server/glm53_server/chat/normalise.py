"""Request messages and tools to the template's nouns; what cannot be rendered is refused by name.

Pure. History is taken as clients keep it: arguments as strings or objects, content as parts, results
in any order. Nothing of it is dropped silently.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from glm53_server.api_errors import ApiError, invalid
from glm53_server.schemas_chat import ChatMessage, ContentPart, MessageToolCall

from .arguments import Schema
from .markers import Marker
from .messages import Message, Role, ToolCall
from .parser import MAX_NAME_CHARS

_TEXT_PARTS = {"text", "input_text", "output_text"}
_ROLES = {role.value: role for role in Role} | {"developer": Role.SYSTEM, "function": Role.TOOL}
MAX_SCHEMA_DEPTH = 64


def normalise_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """Raises ApiError naming `messages[i].field` for what is not supported."""
    normal = [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    return _repair_call_ids(normal)


def normalise_tools(tools: Sequence[Mapping[str, Any]]) -> dict[str, Schema | None]:
    """Tool names and their parameter schemas. Raises ApiError for a tool that cannot be offered."""
    found: dict[str, Schema | None] = {}
    for i, tool in enumerate(tools):
        where = f"tools[{i}]"
        if tool.get("type", "function") != "function":
            raise invalid(f"{where}: only tools of type 'function' are supported", f"{where}.type")
        function = _object(tool.get("function", tool), f"{where}.function")
        name = function.get("name")
        if not isinstance(name, str) or not _is_name(name):
            raise invalid(
                f"{where}.function.name must be 1 to {MAX_NAME_CHARS} characters without white space",
                f"{where}.function.name",
            )
        parameters = function.get("parameters")
        if parameters is not None:
            parameters = _object(parameters, f"{where}.function.parameters")
            _check_schema(parameters, f"{where}.function.parameters")
        found[name] = parameters
    return found


def arguments_of(raw: object) -> dict[str, Any]:
    """Arguments of a call in the history, as a mapping; damaged ones become one text argument."""
    if raw is None or raw == "":
        return {}
    if isinstance(raw, str):
        try:
            parsed: object = json.loads(raw)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            return {"arguments": raw}
        arguments = cast(dict[str, Any], parsed)
        return {"arguments": raw} if depth_exceeds(arguments, MAX_SCHEMA_DEPTH) else arguments
    return cast(dict[str, Any], raw) if isinstance(raw, dict) else {"arguments": json.dumps(raw)}


def text_of(content: object, where: str) -> str:
    """The text of a message's content. Parts are joined without a separator."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = cast(list[object], content)
        return "".join(_part_text(part, f"{where}[{i}]") for i, part in enumerate(parts))
    raise invalid(f"{where} must be a string or a list of text parts", where)


def _part_text(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    assert isinstance(part, ContentPart)
    if part.type in _TEXT_PARTS and part.text is not None:
        return part.text
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type in _TEXT_PARTS:
        raise invalid(f"{where}.text is required", f"{where}.text")
    raise ApiError(
        f"{where}: this model reads text only, not parts of type {part.type[:40]!r}",
        400,
        "unsupported_parameter",
        f"{where}.type",
    )


def _message(message: ChatMessage, where: str) -> Message:
    role = _ROLES.get(message.role)
    if role is None:
        known = ", ".join(_ROLES)
        raise invalid(f"{where}.role must be one of: {known}", f"{where}.role")
    content = message.content
    if role is Role.TOOL and isinstance(content, (int, float, dict)):
        text = json.dumps(content, ensure_ascii=False)
    else:
        text = text_of(content, f"{where}.content")
    if role is not Role.ASSISTANT:
        return Message(role, text, call_id=message.tool_call_id)
    reasoning = message.reasoning_content
    if reasoning is None:
        reasoning = message.reasoning
    calls = tuple(_call(call) for call in message.tool_calls or ())
    return Message(role, text, reasoning, calls)


def _call(call: MessageToolCall) -> ToolCall:
    return ToolCall(call.function.name, arguments_of(call.function.arguments), call.id)


def _repair_call_ids(messages: list[Message]) -> list[Message]:
    """Where ids of calls and results do not pair up, results keep their places instead.

    The template would drop a result whose id matches no call.
    """
    repaired: list[Message] = []
    expected: list[str | None] = []
    run_start = 0
    for i, message in enumerate([*messages, Message(Role.USER)]):
        if message.role is Role.TOOL:
            continue
        run = messages[run_start:i]
        if sorted(m.call_id or "" for m in run) != sorted(call_id or "" for call_id in expected):
            run = [replace(result, call_id=None) for result in run]
        repaired += run
        run_start = i + 1
        expected = [call.id for call in message.calls]
        if i < len(messages):
            repaired.append(message)
    return repaired


def _is_name(name: str) -> bool:
    marked = any(marker.value in name for marker in Marker)
    return (
        0 < len(name) <= MAX_NAME_CHARS
        and len(name.split()) == 1
        and not marked
        and name == name.strip()
    )


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise invalid(f"{where} must be an object", where)
    return cast(Mapping[str, Any], value)


def _check_schema(schema: Mapping[str, Any], where: str) -> None:
    """Cheap checks: the parts our typing reads have the right JSON types, and nesting is bounded."""
    if not isinstance(schema.get("properties", {}), Mapping):
        raise invalid(f"{where}.properties must be an object", where)
    if not isinstance(schema.get("required", []), list):
        raise invalid(f"{where}.required must be an array", where)
    if not isinstance(schema.get("type", "object"), (str, list)):
        raise invalid(f"{where}.type must be a string", where)
    if depth_exceeds(schema, MAX_SCHEMA_DEPTH):
        raise invalid(f"{where} is nested deeper than {MAX_SCHEMA_DEPTH} levels", where)


def depth_exceeds(value: object, limit: int) -> bool:
    """True when `value` nests deeper than `limit` containers."""
    level: list[object] = [value]
    for _ in range(limit + 1):
        inner: list[object] = []
        for item in level:
            if isinstance(item, Mapping):
                inner += cast(Mapping[str, object], item).values()
            elif isinstance(item, list):
                inner += cast(list[object], item)
        if not inner:
            return False
        level = inner
    return True
