"""The grammar of a chat stream: every stream in these tests goes through `chat_stream`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

_HEAD = {"id", "object", "created", "model", "system_fingerprint"}


@dataclass
class Streamed:
    """One choice, folded from its deltas."""

    content: str = ""
    reasoning: str = ""
    calls: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    finish: str | None = None
    roles: int = 0


def frames(text):
    """(event name or None, data text) of every frame; comments are skipped."""
    assert text.endswith("\n\n"), "the body ends inside a frame"
    for block in text[:-2].split("\n\n"):
        lines = block.split("\n")
        if all(line.startswith(":") for line in lines):
            continue
        name = None
        if lines[0].startswith("event: "):
            name = lines.pop(0).removeprefix("event: ")
        assert len(lines) == 1, block
        assert lines[0].startswith("data: "), block
        yield name, lines[0].removeprefix("data: ")


def chat_stream(text, *, usage=False, choices=1):
    """Check a whole chat stream and fold it: (choices, usage or None)."""
    datas = list(frames(text))
    assert all(name is None for name, _ in datas), "chat frames have no event name"
    assert datas[-1][1] == "[DONE]"
    chunks = [json.loads(data) for _, data in datas[:-1]]
    head = {key: chunks[0][key] for key in _HEAD}
    assert head["object"] == "chat.completion.chunk"
    assert isinstance(head["created"], int)
    folded = [Streamed() for _ in range(choices)]
    final = None
    for chunk in chunks:
        assert {key: chunk[key] for key in _HEAD} == head
        assert final is None, "nothing follows the usage chunk"
        if usage:
            assert "usage" in chunk
        else:
            assert "usage" not in chunk
        if not chunk["choices"]:
            final = chunk["usage"]
            continue
        (choice,) = chunk["choices"]
        _delta(folded[choice["index"]], choice)
    assert (final is not None) == usage
    for one in folded:
        assert one.roles == 1
        assert one.finish in {"stop", "length", "tool_calls"}
    return folded, final


def _delta(one, choice):
    delta, reason = choice["delta"], choice["finish_reason"]
    assert one.finish is None, "a delta after the terminal chunk"
    if "role" in delta:
        assert one == Streamed(), "the role comes first"
        assert delta == {"role": "assistant", "content": ""}
        one.roles += 1
        return
    assert one.roles == 1
    if reason is not None:
        assert delta == {}
        one.finish = reason
        return
    assert len(delta) == 1, delta
    if choice["logprobs"]:
        one.logprobs += choice["logprobs"]["content"]
    match delta:
        case {"content": str(text)} if text:
            one.content += text
        case {"reasoning_content": str(text)} if text:
            one.reasoning += text
        case {"tool_calls": [call]}:
            _call(one, call)
        case _:
            raise AssertionError(delta)


def _call(one, call):
    if "id" in call:
        assert set(call) == {"index", "id", "type", "function"}
        assert call["index"] == len(one.calls)
        assert call["id"].startswith("call_")
        assert call["id"] not in [known["id"] for known in one.calls]
        assert call["type"] == "function"
        assert call["function"]["name"]
        assert call["function"]["arguments"] == ""
        one.calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
    else:
        assert set(call) == {"index", "function"}
        assert call["index"] == len(one.calls) - 1
        assert set(call["function"]) == {"arguments"}
        assert call["function"]["arguments"]
        one.calls[-1]["arguments"] += call["function"]["arguments"]
