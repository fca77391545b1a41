"""GLM-5.3-Flash's chat format (revision of 26 August): messages to prompt pieces.

Pure. Control tokens are Control pieces and everything else is text, so the tokenizer can encode a
message that spells a control token as plain text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from itertools import groupby
from typing import Any, cast

from .markers import ASSISTANT, CONTROLS, Control, Marker, PromptPiece
from .messages import Message, Role, ToolCall

_TOOLS_HEAD = """
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
"""
_TOOLS_TAIL = """</tools>

For each function call, output the function name and arguments within the following XML format:
"""
_NOT_FOR_THE_MODEL = {"strict", "defer_loading"}


class Tail(Enum):
    """How a prompt ends."""

    THINK = auto()  # the assistant's turn, inside its reasoning
    NO_THINK = auto()  # the assistant's turn with an empty, closed reasoning
    NONE = auto()  # no turn is opened
    CONTINUE = auto()  # the last message, an assistant's, is continued


def render(
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    effort: str | None = None,
    clear_thinking: bool | None = None,
    tail: Tail = Tail.THINK,
) -> list[PromptPiece]:
    """The prompt of a conversation.

    `effort` is "low", "high" or anything else for the maximum. `clear_thinking` None keeps past
    reasoning only after the last user message, as this revision does; False keeps all of it.
    """
    level = {"low": "Low", "high": "High"}.get(effort or "", "Max")
    pieces: list[PromptPiece] = [Control("[gMASK]"), Control("<sop>")]
    pieces += [Control("<|system|>"), f"Reasoning Effort: {level}"]
    shown = [tool for tool in tools if not _function(tool).get("defer_loading")]
    if tools:
        pieces += [Control("<|system|>"), _TOOLS_HEAD]
        pieces += [_tool_line(_function(tool)) for tool in shown]
        pieces += [_TOOLS_TAIL, *_example_call()]
    history = messages[:-1] if tail is Tail.CONTINUE else messages
    pieces += _history(history, keep_all=clear_thinking is False)
    return pieces + _tail(tail, messages)


def prompt_text(pieces: Sequence[PromptPiece]) -> str:
    """The prompt as one string, control tokens spelled out."""
    return "".join(piece if isinstance(piece, str) else piece.text for piece in pieces)


def ends_in_reasoning(pieces: Sequence[PromptPiece]) -> bool:
    """True when the output continues a reasoning block: the parser's start state."""
    for piece in reversed(pieces):
        if piece == Control(Marker.THINK.value):
            return True
        if piece in {Control(Marker.THINK_END.value), Control(ASSISTANT)}:
            return False
    return False


def _history(messages: Sequence[Message], *, keep_all: bool) -> list[PromptPiece]:
    last_user = max((i for i, m in enumerate(messages) if m.role is Role.USER), default=-1)
    pieces: list[PromptPiece] = []
    calls: tuple[ToolCall, ...] = ()
    numbered = enumerate(messages)
    for is_tool, group in groupby(numbered, key=lambda pair: pair[1].role is Role.TOOL):
        run = list(group)
        if is_tool:
            pieces += _tool_results([message for _, message in run], calls)
            continue
        for index, message in run:
            if message.role is Role.ASSISTANT:
                calls = message.calls
                pieces += _assistant(message, keep_reasoning=keep_all or index > last_user)
            else:
                pieces += [Control(f"<|{message.role.value}|>"), message.content]
    return pieces


def _assistant(message: Message, *, keep_reasoning: bool) -> list[PromptPiece]:
    reasoning, content = _split_think(message)
    pieces: list[PromptPiece] = [Control(ASSISTANT), Control(Marker.THINK.value)]
    if keep_reasoning and reasoning:
        pieces.append(reasoning)
    pieces += [Control(Marker.THINK_END.value), content.strip()]
    for call in message.calls:
        pieces += _call(call)
    return pieces


def _split_think(message: Message) -> tuple[str, str]:
    close = Marker.THINK_END.value
    if message.reasoning is not None or close not in message.content:
        return message.reasoning or "", message.content
    before = message.content.split(close, 1)[0].rsplit(Marker.THINK.value, 1)[-1]
    return before, message.content.rsplit(close, 1)[-1]


def _call(call: ToolCall) -> list[PromptPiece]:
    pieces: list[PromptPiece] = [Control(Marker.CALL.value), call.name]
    for key, value in call.arguments.items():
        pieces += [Control(Marker.KEY.value), key, Control(Marker.KEY_END.value)]
        text = value if isinstance(value, str) else _json(value)
        pieces += [Control(Marker.VALUE.value), text, Control(Marker.VALUE_END.value)]
    return [*pieces, Control(Marker.CALL_END.value)]


def _tool_results(results: Sequence[Message], calls: Sequence[ToolCall]) -> list[PromptPiece]:
    pieces: list[PromptPiece] = [Control("<|observation|>")]
    for result in _in_call_order(results, calls):
        pieces += [Control("<tool_response>"), result.content, Control("</tool_response>")]
    return pieces


def _in_call_order(results: Sequence[Message], calls: Sequence[ToolCall]) -> list[Message]:
    """This revision drops a result whose id matches no call; callers repair ids before."""
    everything_named = all(call.id for call in calls) and all(r.call_id for r in results)
    if not calls or not everything_named:
        return list(results)
    return [result for call in calls for result in results if result.call_id == call.id]


def _tail(tail: Tail, messages: Sequence[Message]) -> list[PromptPiece]:
    if tail is Tail.NONE:
        return []
    opened: list[PromptPiece] = [Control(ASSISTANT), Control(Marker.THINK.value)]
    if tail is Tail.THINK:
        return opened
    if tail is Tail.NO_THINK:
        return [*opened, Control(Marker.THINK_END.value)]
    reasoning, content = _split_think(messages[-1])
    if reasoning and not content:
        return [*opened, reasoning]
    return [*opened, reasoning, Control(Marker.THINK_END.value), content]


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return cast(Mapping[str, Any], function) if isinstance(function, Mapping) else tool


def _tool_line(function: Mapping[str, Any]) -> str:
    shown = ((k, v) for k, v in function.items() if k not in _NOT_FOR_THE_MODEL)
    return "{" + ", ".join(f"{_json(key)}: {_json(value)}" for key, value in shown) + "}\n"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _example_call() -> list[PromptPiece]:
    text = "<tool_call>{function-name}"
    for number in (1, 2):
        text += (
            f"<arg_key>{{arg-key-{number}}}</arg_key><arg_value>{{arg-value-{number}}}</arg_value>"
        )
    return _controls(text + "...</tool_call>")


def _controls(text: str) -> list[PromptPiece]:
    """Split our own literal text at its control tokens."""
    pieces: list[PromptPiece] = []
    while text:
        hits = [(text.find(c), c) for c in CONTROLS if c in text]
        at, control = min(hits, default=(len(text), ""))
        pieces.append(text[:at])
        if control:
            pieces.append(Control(control))
        text = text[at + len(control) :]
    return [piece for piece in pieces if piece]
