"""Whether an answer is right: the same rules for the trainer's checks and for the suite over HTTP. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .samples import Sample


@dataclass(frozen=True, slots=True)
class Said:
    """What a model answered. `reasoning_closed` False: its reasoning never ended."""

    content: str
    reasoning: str = ""
    reasoning_closed: bool = True
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()


def right(sample: Sample, turn: int, said: Said) -> bool:
    """Whether `said` does what message number `turn` of the sample does."""
    wanted = sample.messages[turn]
    calls = [(call.name, dict(call.arguments)) for call in wanted.calls]
    if not said.reasoning_closed or [(name, dict(given)) for name, given in said.calls] != calls:
        return False
    if calls or turn != len(sample.messages) - 1:
        return True
    if sample.as_json:
        return same_json(said.content, wanted.content)
    return has_words(said.content, sample.answer)


def same_json(content: str, wanted: str) -> bool:
    try:
        return json.loads(content) == json.loads(wanted)
    except ValueError:
        return False


def has_words(content: str, words: str) -> bool:
    """`words` occur in `content` and are not part of a longer word or number."""
    return re.search(rf"(?<![\w.-]){re.escape(words)}(?!\w|\.\d)", content) is not None
