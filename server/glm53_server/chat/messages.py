"""The nouns of a conversation, as the template renders them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call an assistant made; keys of `arguments` keep their order."""

    name: str
    arguments: Mapping[str, Any]
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `reasoning` None means: look for a think block in the content."""

    role: Role
    content: str = ""
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None  # of a tool result
