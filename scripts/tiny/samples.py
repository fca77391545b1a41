"""The nouns of the corpus: one conversation with what its answers must be, and the split it belongs to.

A sample's `key` names what is asked, not how it came about. Its hash alone decides the split, so no
seed and no size of a corpus can bring a held-out question into training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

from glm53_server.chat.messages import Message, Role, ToolCall

_HELD_OUT_OF = 20  # one key in so many is never trained on


class Split(StrEnum):
    TRAIN = "train"
    HELD_OUT = "held-out"


@dataclass(frozen=True, slots=True)
class Sample:
    """A conversation that ends with an assistant message.

    `answer` must occur in that message as words of their own; with `as_json` the message is one JSON
    value instead, to be equalled. Every assistant message after the last user message is to be learned.
    `mentions` are keys of other questions that the conversation answers on its way.
    """

    task: str
    key: str
    messages: tuple[Message, ...]
    answer: str = ""
    as_json: bool = False
    tools: tuple[Mapping[str, Any], ...] = ()
    effort: str | None = None
    thinks: bool = True
    mentions: tuple[str, ...] = ()

    @property
    def split(self) -> Split:
        """The split of its key; a sample that mentions a held-out question is never trained on."""
        keys = (self.key, *self.mentions)
        train = all(split_of(key) is Split.TRAIN for key in keys)
        return Split.TRAIN if train else Split.HELD_OUT

    def live_turns(self) -> list[int]:
        """Indices of the assistant messages after the last user message."""
        last_user = max(i for i, m in enumerate(self.messages) if m.role is Role.USER)
        return [
            i
            for i, message in enumerate(self.messages)
            if message.role is Role.ASSISTANT and i > last_user
        ]


Maker = Callable[[Random], Sample]


def split_of(key: str) -> Split:
    """The split of a key, for all time."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    held_out = int.from_bytes(digest, "big") % _HELD_OUT_OF == 0
    return Split.HELD_OUT if held_out else Split.TRAIN


def user(text: str) -> Message:
    return Message(Role.USER, text)


def assistant(text: str, reasoning: str = "", calls: Sequence[ToolCall] = ()) -> Message:
    return Message(Role.ASSISTANT, text, reasoning, tuple(calls))


def result(text: str, call_id: str) -> Message:
    return Message(Role.TOOL, text, call_id=call_id)


def question(task: str, key: str, asked: str, thought: str, said: str, answer: str) -> Sample:
    """One question, one reasoned answer. Parameters in the order in which they are read aloud."""
    messages = (user(asked), assistant(said, thought))
    return Sample(task, f"{task}:{key}", messages, answer)


def either(rng: Random, *choices: str) -> str:
    return rng.choice(choices)
