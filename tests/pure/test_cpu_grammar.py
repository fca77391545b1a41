"""Grammars of the CPU engine over the bundled tokenizer: what is allowed can be followed to its end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from glm53_server.engine.base import Grammar
from glm53_server.engine.cpu_grammar import GrammarCompiler
from glm53ctl.checkpoint import facts, open_checkpoint
from glm53ctl.paths import tiny_checkpoint

PATH = tiny_checkpoint() / "tokenizer.json"
TEXTS = Tokenizer.from_file(str(PATH))
FACTS = facts(open_checkpoint(tiny_checkpoint()))
CONTROL = [
    token["content"] for token in json.loads(PATH.read_text(encoding="utf-8"))["added_tokens"]
]


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(PATH, FACTS.vocab_size, FACTS.eos_ids)


def followed(compiler: GrammarCompiler, schema: Any) -> str:
    """Takes the longest allowed text at every step."""
    guide = compiler.compile(Grammar("json_schema", json.dumps(schema), None))
    ids: list[int] = []
    for _ in range(200):
        allowed = guide.allowed()
        assert allowed is not None
        choices = [i for i in allowed.nonzero().flatten().tolist() if i not in FACTS.eos_ids]
        if not choices:
            break
        ids.append(max(choices, key=lambda i: len(TEXTS.decode([i], skip_special_tokens=False))))
        if guide.advance(ids[-1]):
            break
    return TEXTS.decode(ids, skip_special_tokens=False)


def one_of(*texts: str) -> dict[str, Any]:
    return {
        "type": "object", "properties": {"a": {"enum": list(texts)}}, "required": ["a"],
        "additionalProperties": False,
    }  # fmt: skip


@pytest.mark.parametrize("text", [*CONTROL, "plain<think>x", "a</tool_call>", 'say "é" \\'])
def test_a_string_that_reads_like_a_control_token_is_spelled_out(
    compiler: GrammarCompiler, text: str
) -> None:
    assert json.loads(followed(compiler, one_of(text))) == {"a": text}


def test_a_property_may_be_named_so_too(compiler: GrammarCompiler) -> None:
    schema = {
        "type": "object", "properties": {"<|user|>": {"const": "<think>"}}, "required": ["<|user|>"],
        "additionalProperties": False,
    }  # fmt: skip
    assert json.loads(followed(compiler, schema)) == {"<|user|>": "<think>"}


def test_no_control_token_is_ever_allowed_inside(compiler: GrammarCompiler) -> None:
    guide = compiler.compile(Grammar("json_schema", json.dumps({"type": "string"}), None))
    assert guide.allowed() is not None
    first = TEXTS.encode('"').ids[0]
    guide.advance(first)
    allowed = guide.allowed()
    assert allowed is not None
    control = [TEXTS.token_to_id(text) for text in CONTROL]
    assert not any(bool(allowed[i]) for i in control)
