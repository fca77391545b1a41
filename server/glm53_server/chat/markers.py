"""GLM's control tokens: which strings of the chat format are single ids, and what they mean.

Looked up in the tokenizer by content, never by number: small test checkpoints number them otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Marker(Enum):
    """Markup a model writes inside its turn. The value is the marker's text."""

    THINK = "<think>"
    THINK_END = "</think>"
    CALL = "<tool_call>"
    CALL_END = "</tool_call>"
    KEY = "<arg_key>"
    KEY_END = "</arg_key>"
    VALUE = "<arg_value>"
    VALUE_END = "</arg_value>"


# One item of a model's output: decoded text, or a marker that arrived as its own token id.
Piece = str | Marker

ASSISTANT = "<|assistant|>"
# A turn ends where the next speaker would begin; `<|assistant|>` does not end one.
TURN_ENDS = ("<|endoftext|>", "<|user|>", "<|observation|>")
# Every control string the prompt renderer writes.
CONTROLS = frozenset(
    {
        "[gMASK]",
        "<sop>",
        "<|system|>",
        "<|user|>",
        ASSISTANT,
        "<|observation|>",
        "<tool_response>",
        "</tool_response>",
        *(marker.value for marker in Marker),
    }
)


@dataclass(frozen=True, slots=True)
class Control:
    """A control token of a prompt, by content; text of a prompt is a plain str."""

    text: str


PromptPiece = str | Control
