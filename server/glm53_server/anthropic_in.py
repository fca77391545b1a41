"""Anthropic's conversation in our chat request's terms. Pure; nothing of a conversation is dropped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from glm53_server.api_errors import ApiError, invalid, unsupported
from glm53_server.conversation import as_chat_request
from glm53_server.schemas_anthropic import Block, CountRequest, InputMessage, MessagesRequest
from glm53_server.schemas_chat import ChatRequest

# A text block whose content changes with every request; it would spoil the prompt cache.
_BILLING = "x-anthropic-billing-header"


def chat_request(body: CountRequest) -> ChatRequest:
    """The chat request that means the same. Raises ApiError for images and other non-text."""
    if (body.model_extra or {}).get("mcp_servers"):
        raise unsupported("mcp_servers", "this server calls no other servers")
    messages: list[dict[str, Any]] = []
    if system := _system(body.system):
        messages.append({"role": "system", "content": system})
    for i, message in enumerate(body.messages):
        messages += _message(message, f"messages[{i}]")
    fields: dict[str, Any] = {
        "messages": messages or [{"role": "user", "content": ""}],
        "reasoning_effort": _effort(body),
        "continue_final_message": body.messages[-1].role == "assistant",
        **_tools(body),
    }
    if isinstance(body, MessagesRequest):
        fields |= {
            "max_tokens": body.max_tokens,
            "stop": body.stop_sequences,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
        }
    return as_chat_request(fields)


def wants_thinking(body: CountRequest) -> bool:
    """False when the client asked not to see any; this model thinks nevertheless."""
    return body.thinking is None or body.thinking.type != "disabled"


def _effort(body: CountRequest) -> str | None:
    if body.output_config is not None and body.output_config.effort is not None:
        return body.output_config.effort
    return None if wants_thinking(body) else "low"


def _system(system: str | Sequence[Block] | None) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    texts = (_text(block, f"system[{i}]") for i, block in enumerate(system))
    return "\n".join(text for text in texts if not text.startswith(_BILLING))


def _message(message: InputMessage, where: str) -> list[dict[str, Any]]:
    content = message.content
    if isinstance(content, str):
        return [{"role": message.role, "content": content}]
    if message.role == "assistant":
        return [_assistant(content, where)]
    return _user(message.role, content, where)


def _assistant(blocks: Sequence[Block], where: str) -> dict[str, Any]:
    text, thinking = "", ""
    calls: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        match block.type:
            case "thinking":
                thinking += block.thinking or ""
            case "redacted_thinking":
                pass  # unreadable for every model but its own
            case "tool_use":
                function = {"name": block.name or "", "arguments": block.input}
                calls.append({"id": block.id, "type": "function", "function": function})
            case _:
                text += _text(block, f"{where}.content[{i}]")
    message: dict[str, Any] = {"role": "assistant", "content": text, "tool_calls": calls}
    return {**message, "reasoning_content": thinking} if thinking else message


def _user(role: str, blocks: Sequence[Block], where: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    text: list[str] = []
    for i, block in enumerate(blocks):
        here = f"{where}.content[{i}]"
        if block.type != "tool_result":
            text.append(_text(block, here))
            continue
        if text:
            messages.append({"role": role, "content": "".join(text)})
            text = []
        result = _result(block, here)
        messages.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": result})
    if text or not messages:
        messages.append({"role": role, "content": "".join(text)})
    return messages


def _result(block: Block, where: str) -> str:
    content = block.content or ""
    if not isinstance(content, str):
        parts = [_text(part, f"{where}.content[{i}]") for i, part in enumerate(content)]
        content = "".join(parts)
    return f"Error: {content}" if block.is_error else content


def _text(block: Block, where: str) -> str:
    if block.type != "text" or block.text is None:
        raise ApiError(
            f"{where}: this model reads text only, not blocks of type {block.type[:40]!r}",
            400,
            "unsupported_parameter",
            where,
        )
    return block.text


def _tools(body: CountRequest) -> dict[str, Any]:
    """Tools of the client; Anthropic's server-side tools cannot run here and are left out."""
    own = [tool for tool in body.tools or () if tool.get("type", "custom") in {"custom", None}]
    fields: dict[str, Any] = {"tools": [_tool(tool, i) for i, tool in enumerate(own)]}
    choice = body.tool_choice
    if choice is None:
        return fields
    names = {"auto": "auto", "any": "required", "none": "none"}
    named = {"type": "function", "function": {"name": choice.name or ""}}
    fields["tool_choice"] = names.get(choice.type, named)
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    return fields


def _tool(tool: Mapping[str, Any], index: int) -> dict[str, Any]:
    if not isinstance(tool.get("input_schema", {}), Mapping):
        raise invalid(f"tools[{index}].input_schema must be an object", f"tools[{index}]")
    function = {"name": tool.get("name")}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema")}}


def parsed_input(arguments: str) -> dict[str, Any]:
    """A call's arguments as `input`; unfinished ones are empty, as the call must not be run."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
