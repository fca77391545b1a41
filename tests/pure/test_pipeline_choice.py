"""The whole pipeline of one choice: the answer never depends on how the engine groups its ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm53_server.chat.markers import Marker
from glm53_server.chat.parser import OutputParser
from glm53_server.engine.base import Done, FinishReason, GenRequest, Tokens, TokenScore
from glm53_server.fold import fold
from glm53_server.pipeline import ChoicePipeline, Finish, OutputOptions
from glm53_server.tokenizer import Tokenizer

TOKENIZER = Tokenizer(Path(__file__).parents[2] / "reference/tiny/tokenizer.json")
TOOLS = {"f": {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}, "g": None}
WORDS = [
    *(m.value for m in Marker),
    "f",
    "g",
    "s",
    "n",
    "7",
    "é😀",
    "stop",
    " st",
    "op",
    "\n",
    " ",
    "a",
]


def answer(ids, groups, *, stop=(), reason=FinishReason.STOP, max_tokens=10_000, **options):
    request = GenRequest("r", (1, 2), max_tokens, stop_ids=frozenset({0}))
    pipeline = ChoicePipeline(
        TOKENIZER,
        request,
        OutputOptions(stop=tuple(stop), **options),
        OutputParser(reasoning=True, tools=TOOLS),
    )
    events, start = [], 0
    for size in groups:
        if pipeline.ended:
            break
        group = tuple(ids[start : start + size])
        start += size
        events += pipeline.feed(Tokens(group, tuple(TokenScore(i, -1.0) for i in group)))
    done = None if pipeline.ended else Done(reason, 2, len(ids))
    events += pipeline.finish(done)
    assert isinstance(events[-1], Finish)
    assert sum(isinstance(event, Finish) for event in events) == 1
    return fold(events)


def view(found):
    calls = [(call.name, call.arguments) for call in found.calls]
    return found.text, found.reasoning, calls, found.finish, found.scores


@settings(max_examples=150, deadline=None)
@given(
    words=st.lists(st.sampled_from(WORDS), max_size=24),
    sizes=st.lists(st.integers(1, 6), max_size=60),
    stop=st.sampled_from([(), ("stop",), ("\n\n", "a")]),
    reason=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    one_call=st.booleans(),
)
def test_the_answer_is_independent_of_the_grouping(words, sizes, stop, reason, one_call):
    ids = TOKENIZER.encode_raw("".join(words))
    sizes = [*sizes, *([1] * len(ids))]
    how = {"stop": stop, "reason": reason, "one_call": one_call}
    singly = answer(ids, [1] * len(ids), **how)
    assert view(answer(ids, [len(ids)], **how)) == view(singly)
    assert view(answer(ids, sizes, **how)) == view(singly)
    joined = b"".join(TOKENIZER.bytes_of(score.token_id) for score in singly.scores).decode()
    if not stop and not singly.calls:
        assert joined.lstrip("\n") == singly.text


def test_ids_beyond_the_budget_are_cut():
    ids = TOKENIZER.encode_raw("</think>one two three")
    whole = answer(ids, [len(ids)], max_tokens=3, reason=FinishReason.LENGTH)
    assert whole.finish.usage.completion == 3
    assert whole.text == TOKENIZER.decode(ids[1:3])


def test_a_stop_on_the_last_allowed_id_is_a_stop():
    ids = TOKENIZER.encode_raw("</think>ab")
    found = answer(
        ids, [1] * len(ids), stop=("b",), max_tokens=len(ids), reason=FinishReason.LENGTH
    )
    assert (found.text, found.finish.reason, found.finish.matched) == ("a", "stop", "b")


@pytest.mark.parametrize("size", [1, 100])
def test_usage_counts_reasoning_up_to_and_including_its_end(size):
    ids = [*TOKENIZER.encode_raw("think</think>Hi"), 0]
    found = answer(ids, [size] * len(ids))
    assert found.finish.usage.completion == len(ids)
    assert found.finish.usage.reasoning == ids.index(TOKENIZER.id_of("</think>")) + 1
