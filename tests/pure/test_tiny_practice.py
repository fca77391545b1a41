"""What the tiny model practises: right, and never a question of the suite."""

from __future__ import annotations

import json
import re
import sys
from itertools import islice
from pathlib import Path
from random import Random

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from tiny import corpus, practice, small_talk, tool_practice, typed_sums, world  # noqa: E402
from tiny.samples import Split  # noqa: E402

from glm53_server.chat.messages import Role  # noqa: E402

TRAINED = list(islice(corpus.samples(2), 2500))
HELD_OUT = list(islice(corpus.samples(2, Split.HELD_OUT), 300))


def test_practice_is_never_asked_and_repeats_what_it_was_given(monkeypatch):
    monkeypatch.setattr(corpus, "PRACTICE", ())
    assert list(islice(corpus.samples(2, Split.HELD_OUT), 300)) == HELD_OUT
    assert list(islice(corpus.samples(2), 50)) != TRAINED[:50]
    assert not any(sample.task == "copy" for sample in HELD_OUT)
    copied = [sample for sample in TRAINED if sample.task == "copy"]
    assert len(copied) > 150
    for sample in copied:
        assert sample.answer in sample.messages[-2].content
        assert sample.answer in sample.messages[-1].content


def test_more_small_talk_is_none_of_what_is_held_out_not_even_in_other_punctuation():
    ways = {small_talk.bare(way) for _, asked, *_ in small_talk.TALK for way in asked}
    said = small_talk.sayings()
    assert said.keys() == {kind for kind, *_ in small_talk.TALK}
    assert ways.isdisjoint(small_talk.bare(way) for more in said.values() for way in more)
    assert sum(map(len, said.values())) > 500
    assert small_talk.bare("See you, please!") == small_talk.bare("see you")


def test_careless_questions_have_the_keys_of_careful_ones():
    rng = Random(3)
    held_out = 0
    for _ in range(400):
        sample = practice.carelessly(rng)
        held_out += sample.split is Split.HELD_OUT
        asked = sample.messages[-2].content
        assert sample.key.partition(":")[0] in {
            "fact",
            "talk",
            "arithmetic",
            "calendar",
            "clock",
            "units",
        }
        if sample.key.startswith("talk:") and "impossible" not in sample.key:
            assert small_talk.bare(asked) == small_talk.bare(sample.key.partition("/")[2])
    assert held_out


def test_practice_answers_out_of_what_it_was_given():
    """Strings of a call's arguments stand in the request, the answer in what the tool returned."""
    rng, strings, results = Random(5), 0, 0
    for make in (
        tool_practice.strange_call,
        tool_practice.two_strange,
        tool_practice.strange_again,
    ):
        for sample in (make(rng) for _ in range(150)):
            *_, calling, last, _ = [
                i for i, m in enumerate(sample.messages) if m.role is not Role.TOOL
            ] + [-1]
            asked = sample.messages[calling - 1].content.lower()
            for call in sample.messages[calling].calls:
                for value in call.arguments.values():
                    if isinstance(value, str):
                        assert value.lower() in asked
                        strings += 1
            if sample.answer != "It is done":
                assert sample.answer in sample.messages[last - 1].content
                results += 1
    assert strings > 300
    assert results > 300


def test_no_tool_that_is_not_offered_is_called_and_none_where_none_fits():
    rng = Random(6)
    for _ in range(200):
        beside, without = tool_practice.beside_tools(rng), tool_practice.no_such_tool(rng)
        assert beside.tools
        assert not any(
            name in json.dumps(without.tools) for name in ("get_weather", "send_message")
        )
        assert without.answer == "I don't know"
        for sample in (beside, without):
            assert not any(message.calls for message in sample.messages)
    sample = tool_practice.calculated(rng)
    assert sample.mentions[0].startswith("arithmetic:")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ((3, "-", 5), "-2"), ((7, "*", 8), "56"), ((12, "*", 34), "408"), ((84, "/", 4), "21"),
        ((9999, "+", 9999), "19998"), ((1, "*", 10), "10"),
    ],
)  # fmt: skip
def test_the_working_of_a_typed_sum_ends_in_its_value(typed, said):
    value, working = typed_sums._worked(*typed)
    assert str(value) == said
    assert working.endswith(f"So {' '.join(map(str, typed))} = {said}.")
    assert typed_sums._key(*typed) == typed_sums._key(*(typed[::-1] if typed[1] in "+*" else typed))


def test_what_is_told_of_towns_and_islands_is_so():
    rng, true = Random(8), {
        world.stated(town, attribute).lower() for town in world.TOWNS for attribute in world.STATED
    }  # fmt: skip
    for _ in range(200):
        told, listed = world.told_about(rng), world.listed(rng)
        said = told.messages[-1].content.rstrip(".").lower()
        clauses = re.split(r", | and (?=the |\w+ (?:lies|is known|trades|was))", said)
        assert {clause for clause in clauses if clause not in {"yes", "no"}} <= true
        if (claimed := told.key.removeprefix("fact:so/")) != told.key:
            assert said.startswith("yes") == (claimed.lower() in true)
        named = {town for town in world.BY_NAME if town in listed.messages[-1].content}
        assert named or re.search(r"There are [45] towns", listed.messages[-1].content)


def test_a_chained_call_passes_on_what_the_first_one_returned():
    rng = Random(7)
    chains = 0
    for sample in (tool_practice.chained(rng) for _ in range(100)):
        returned = [m.content for m in sample.messages if m.role is Role.TOOL]
        calls = [call for message in sample.messages for call in message.calls]
        if len(calls) == 2:
            assert json.loads(returned[0]) == dict(calls[1].arguments)
            chains += 1
    assert chains > 80


def test_a_question_after_others_carries_their_tools_and_keys_and_no_reasoning():
    rng, long, tools = Random(9), 0, 0
    for sample in (practice.later(rng) for _ in range(150)):
        ids = [call.id for message in sample.messages for call in message.calls]
        results = [message.call_id for message in sample.messages if message.role is Role.TOOL]
        assert ids == results
        assert len(set(ids)) == len(ids)
        assert not any(m.reasoning for m in sample.messages[: sample.live_turns()[0]])
        names = {tool["function"]["name"] for tool in sample.tools}
        assert {call.name for message in sample.messages for call in message.calls} <= names
        users = sum(message.role is Role.USER for message in sample.messages)
        long += users > 3
        tools += bool(results)
        assert users == 1 or sample.mentions
    assert long > 40
    assert tools > 30
