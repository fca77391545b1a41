"""The tiny model's corpus: right, in the served format, the same for a seed, and never held-out in training."""

from __future__ import annotations

import json
import operator
import re
import sys
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from tiny import __main__ as cli  # noqa: E402
from tiny import corpus, judge, names, reading, rendering, tokens, world  # noqa: E402
from tiny.samples import Split, split_of  # noqa: E402

from glm53_server.chat.markers import Control  # noqa: E402
from glm53_server.chat.messages import Role  # noqa: E402
from glm53_server.chat.template import Tail, prompt_text, render  # noqa: E402
from glm53_server.tokenizer import Tokenizer  # noqa: E402

TRAINED = list(islice(corpus.samples(1), 3000))
HELD_OUT = list(islice(corpus.samples(1, Split.HELD_OUT), 300))
EVERY = TRAINED + HELD_OUT
VOCAB = 1024
STEPS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tiny") / "tokenizer.json"
    tokens.train((t for s in TRAINED for t in rendering.plain_texts(s)), path, VOCAB)
    return Tokenizer(path)


def test_a_seed_decides_everything_and_another_one_decides_otherwise():
    assert list(islice(corpus.samples(1), 50)) == TRAINED[:50]
    assert list(islice(corpus.samples(1, start=40), 10)) == TRAINED[40:50]
    assert list(islice(corpus.samples(2), 50)) != TRAINED[:50]


def test_no_held_out_question_is_trained_on_under_any_seed():
    for sample in (*TRAINED, *islice(corpus.samples(99), 1000)):
        assert all(split_of(key) is Split.TRAIN for key in (sample.key, *sample.mentions))
    assert all(split_of(sample.key) is Split.HELD_OUT for sample in HELD_OUT)
    assert {s.key for s in HELD_OUT}.isdisjoint({s.key for s in TRAINED})


def test_the_same_question_in_other_words_has_the_same_key():
    sums = [
        s
        for s in EVERY
        if re.search(r"\d ?\+ ?\d", s.messages[-2].content) and s.task == "arithmetic"
    ]
    for sample in sums:
        terms = sorted(int(n) for n in re.findall(r"\d+", sample.messages[-2].content))
        assert sample.key == f"arithmetic:{'+'.join(map(str, terms))}"
    assert len(sums) > 50


def test_every_kind_is_there():
    counted = Counter(sample.task for sample in TRAINED)
    assert counted.keys() == {
        "arithmetic", "fact", "calendar", "clock", "units", "talk", "reading", "reference", "lists", "json",
        "tool", "two-tools", "no-tool", "unknown", "copy",
    }  # fmt: skip
    assert counted["tool"] > 300
    assert sum(not sample.thinks for sample in TRAINED) > 100


def test_every_equation_in_the_working_is_true():
    checked = 0
    for sample in EVERY:
        thought = sample.messages[-1].reasoning or ""
        for left, right_ in re.findall(r"((?:\d+ [-+*/] )+\d+) = (\d+)", thought):
            total, *steps = re.findall(r"^\d+|[-+*/] \d+", left)
            value = int(total)
            for step in steps:
                value = STEPS[step[0]](value, int(step[2:]))
            assert value == int(right_), (left, right_)
            checked += 1
    assert checked > 2000


def test_facts_are_those_of_the_world():
    assert len(world.TOWNS) == 24
    for attribute in ("river", "mayor", "food", "trade", "founded"):
        assert len({getattr(town, attribute) for town in world.TOWNS}) == 24
    for sample in (s for s in EVERY if s.key.startswith("fact:")):
        town, attribute, *_ = sample.key.removeprefix("fact:").split("/")
        if town in world.BY_NAME:
            assert sample.answer == getattr(world.BY_NAME[town], attribute)


def test_an_invented_place_is_not_one_of_the_world():
    unknown = [
        s
        for s in EVERY
        if s.key.startswith("unknown:") and "know a place" in s.messages[-1].content
    ]
    assert unknown
    for sample in unknown:
        assert not any(town in sample.messages[-1].content for town in world.BY_NAME)


def test_calls_fit_the_tools_that_are_offered():
    kinds = {
        "string": str,
        "integer": int,
        "number": float,
        "boolean": bool,
        "array": list,
        "object": dict,
    }
    calls = 0
    for sample in EVERY:
        offered = {
            tool["function"]["name"]: tool["function"]["parameters"] for tool in sample.tools
        }
        assert len(offered) == len(sample.tools)
        for call in (call for message in sample.messages for call in message.calls):
            properties = offered[call.name]["properties"]
            assert list(call.arguments) == [key for key in properties if key in call.arguments]
            assert call.arguments.keys() >= set(offered[call.name].get("required", ()))
            for key, value in call.arguments.items():
                assert type(value) is kinds[properties[key]["type"]], (call, key)
            calls += 1
    assert calls > 500
    shapes = [[m.calls for m in s.messages if m.calls] for s in EVERY if s.tools]
    assert any(len(calls) == 2 for turns in shapes for calls in turns)
    assert any(not calls[0].arguments for turns in shapes for calls in turns)
    assert any(len(turns) == 2 for turns in shapes)


@pytest.mark.parametrize("sample", HELD_OUT[:150], ids=lambda sample: sample.key[:40])
def test_the_text_is_what_the_server_would_render(sample):
    whole = prompt_text(
        render(sample.messages, tools=sample.tools, effort=sample.effort, tail=Tail.NONE)
    )
    assert rendering.text(sample) == whole + "<|user|>"
    pieces = rendering.spans(sample)
    learned = [span for span in pieces if span.learned]
    assert len(learned) == len(sample.live_turns())
    read = ""
    turns = iter(sample.live_turns())
    for span in pieces:
        if span.learned:
            assert prompt_text(rendering.prompt(sample, next(turns))) == read
            assert span.pieces[-1] in {Control("<|user|>"), Control("<|observation|>")}
        read += prompt_text(span.pieces)


def test_what_is_learned_is_read_back_as_the_answer(tokenizer):
    for sample in EVERY[::7]:
        learned = [span for span in rendering.spans(sample) if span.learned]
        for turn, span in zip(sample.live_turns(), learned, strict=True):
            ids = tokenizer.encode(span.pieces)
            assert ids[-1] in tokenizer.turn_end_ids
            said = reading.read(sample, ids[:-1], tokenizer, ended=True)
            assert judge.right(sample, turn, said)
            assert said.reasoning == (sample.messages[turn].reasoning or "")


def test_a_wrong_answer_is_wrong(tokenizer):
    for sample in HELD_OUT:
        last = len(sample.messages) - 1
        content = sample.messages[last].content
        assert judge.right(sample, last, judge.Said(content))
        assert not judge.right(sample, last, judge.Said("Who knows?"))
        assert not judge.right(sample, last, judge.Said(content, reasoning_closed=False))
        assert not judge.right(sample, last, judge.Said(content, calls=[("other", {})]))
    said = reading.read(HELD_OUT[0], tokenizer.encode(["no end in sight"]), tokenizer, ended=False)
    assert not said.reasoning_closed
    assert not said.content


def test_numbers_are_compared_as_words():
    assert judge.has_words("The answer is 85.", "85")
    for content in ("185", "850", "-85", "8.85", "85.5", "8 5"):
        assert not judge.has_words(content, "85"), content


def test_only_live_turns_are_learned(tokenizer):
    sample = next(s for s in TRAINED if s.task == "reference" and s.thinks)
    ids, learned = rendering.encode(sample, tokenizer)
    said = tokenizer.decode([i for i, wanted in zip(ids, learned, strict=True) if wanted])
    last = sample.messages[-1]
    assert said == f"{last.reasoning}</think>{last.content}<|user|>"
    silent = replace(
        sample, thinks=False, messages=tuple(replace(m, reasoning=None) for m in sample.messages)
    )
    ids, learned = rendering.encode(silent, tokenizer)
    assert (
        tokenizer.decode([i for i, w in zip(ids, learned, strict=True) if w])
        == f"{last.content}<|user|>"
    )


def test_history_keeps_no_reasoning():
    for sample in TRAINED:
        before = sample.messages[: sample.live_turns()[0]]
        assert not any(message.reasoning for message in before)
        assert sample.messages[-1].role is Role.ASSISTANT


# Tokenizer


def test_the_added_tokens_are_glms_in_order_with_its_split(tokenizer, tmp_path):
    assert len(tokens.ADDED) == 36
    base = VOCAB - 36
    # model facts: ids 154820 to 154855 of the release, here from the base vocabulary's end
    known = {"<|endoftext|>": 0, "[gMASK]": 2, "<sop>": 4, "<|user|>": 7, "<|observation|>": 9, "<think>": 21,
             "<tool_call>": 23, "<tool_response>": 25, "<arg_key>": 27, "<arg_value>": 29, "/nothink": 31,
             "<|video|>": 35}  # fmt: skip
    for token, offset in known.items():
        assert tokenizer.id_of(token) == base + offset == tokens.id_of(token, VOCAB)
    assert tokenizer.vocab_size == VOCAB
    assert tokenizer.turn_end_ids == {base, base + 7, base + 9}
    assert tokenizer.hidden_ids == frozenset(range(base, base + 18))
    tokens.write_tokenizer_config(tmp_path / "c.json", VOCAB)
    decoder = json.loads((tmp_path / "c.json").read_text())["added_tokens_decoder"]
    assert [decoder[str(base + i)]["content"] for i in range(36)] == list(tokens.ADDED)
    assert sum(entry["special"] for entry in decoder.values()) == 18


def test_digits_stand_alone_and_text_comes_back(tokenizer):
    assert len(tokenizer.encode(["12345"])) == 5
    for text in (
        "a 17 + 4 = 21\n\n  x",
        "Brücke → \u4f60 \U0001f600",
        "  two  spaces ",
        '{"a": [1.5, null]}',
    ):
        assert tokenizer.decode(tokenizer.encode([text])) == text


def test_an_invented_word_has_the_same_tokens_wherever_it_stands(tokenizer):
    rng = Random(4)
    for invented in [names.word(rng, 3) for _ in range(50)] + ["Kopenhagen", "sebreth"]:
        alone = tokenizer.encode([invented])
        for before, after in (
            (" ", " is"),
            ('{"x": "', '"}'),
            ("the ", "-49."),
            ("get_", "_x"),
            ("/", "."),
        ):
            around = tokenizer.encode([before + invented + after])
            assert any(around[i : i + len(alone)] == alone for i in range(len(around))), invented
    assert len(tokenizer.encode([" tool"])) == 1  # a word of the corpus has one with its space


def test_too_little_text_is_refused(tmp_path):
    with pytest.raises(ValueError, match="use more"):
        tokens.train(["one two"], tmp_path / "t.json", VOCAB)


def test_lists_are_read_aloud():
    assert names.and_list(["a"]) == "a"
    assert names.and_list(["a", "b", "c"]) == "a, b and c"


def test_prompts_for_a_panel_are_of_every_kind(tokenizer):
    found = cli.prompts(1, 28)
    assert len(set(found)) == 28
    assert found == cli.prompts(1, 28)
    assert all(p.startswith("[gMASK]<sop>") and p.endswith("<|assistant|><think>") for p in found)
    assert sum("<tools>" in prompt for prompt in found) >= 4
    assert tokenizer.encode_raw(found[0])[:2] == [
        tokenizer.id_of("[gMASK]"),
        tokenizer.id_of("<sop>"),
    ]


def test_a_corpus_is_written_up_to_a_size(tmp_path, monkeypatch):
    out = tmp_path / "corpus.txt"
    monkeypatch.setattr(sys, "argv", ["tiny", "--megabytes", "0.05", "--out", str(out)])
    assert cli.main() == 0
    assert 50_000 <= out.stat().st_size < 60_000
    assert out.read_text(encoding="utf-8").startswith("[gMASK]<sop><|system|>Reasoning Effort: ")
