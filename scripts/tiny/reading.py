"""Generated ids as an answer, read by the server's own parser. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from glm53_server.chat.normalise import normalise_tools
from glm53_server.chat.parser import CallArguments, CallStart, Content, OutputParser, Reasoning
from glm53_server.detokenizer import Detokenizer
from glm53_server.tokenizer import Tokenizer

from .judge import Said
from .samples import Sample


def read(sample: Sample, ids: Sequence[int], tokenizer: Tokenizer, *, ended: bool) -> Said:
    """What the ids after a prompt say. `ended`: the turn was ended, not cut off."""
    pieces = Detokenizer(tokenizer, hidden=tokenizer.hidden_ids)
    parser = OutputParser(reasoning=sample.thinks, tools=normalise_tools(sample.tools) or None)
    events = parser.feed(pieces.feed(i) for i in ids)
    reasoning_closed = not parser.in_reasoning
    events += parser.finish(length=not ended)
    content, reasoning = "", ""
    calls: list[tuple[str, str]] = []
    for event in events:
        match event:
            case Content(text):
                content += text
            case Reasoning(text):
                reasoning += text
            case CallStart(name=name):
                calls.append((name, ""))
            case CallArguments(text=text):
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
            case _:
                pass
    parsed = tuple((name, arguments(text)) for name, text in calls)
    return Said(content.strip(), reasoning, reasoning_closed, parsed)


def arguments(text: str) -> Mapping[str, Any]:
    """The arguments of a call; damaged ones equal nothing that is wanted."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"": text}
