"""Grammars for the CPU engine: which ids may come next, by llguidance.

A grammar the library refuses becomes an EngineError for that request, before anything is computed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import llguidance
import numpy as np
import torch
from torch import Tensor

from glm53_server.engine.base import EngineError, Grammar

log = logging.getLogger(__name__)

_TO_LLGUIDANCE: Mapping[str, Callable[[str], str]] = {
    "json_schema": llguidance.LLMatcher.grammar_from_json_schema,
    "regex": llguidance.LLMatcher.grammar_from_regex,
    "lark": llguidance.LLMatcher.grammar_from_lark,
}


class GrammarCompiler:
    """Makes a Guide from a Grammar, for one tokenizer.json. Safe to call from any thread."""

    def __init__(self, tokenizer_json: Path, vocab_size: int, eos_ids: tuple[int, ...]) -> None:
        self._vocab_size = vocab_size
        self._tokenizer = llguidance.LLTokenizer(
            without_control_texts(tokenizer_json), n_vocab=vocab_size, eos_token=list(eos_ids)
        )

    def compile(self, grammar: Grammar) -> Guide:
        """May take a second for a huge schema. Raises EngineError(400) for a bad grammar."""
        param = "response_format" if grammar.kind == "json_schema" else grammar.kind
        translate = _TO_LLGUIDANCE.get(grammar.kind)
        if translate is None:
            raise EngineError(
                f"grammars of kind {grammar.kind!r} are not supported",
                status=400,
                code="unsupported_parameter",
                param=param,
            )
        try:
            text = translate(grammar.text)
        except ValueError as err:
            raise _refused(str(err), param) from err
        matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0)
        if matcher.is_error():
            raise _refused(matcher.get_error(), param)
        return Guide(matcher, grammar.start_after_id, self._vocab_size)


class Guide:
    """Follows one generation. Until `start_after_id` was produced, everything is allowed."""

    def __init__(
        self, matcher: llguidance.LLMatcher, start_after_id: int | None, vocab_size: int
    ) -> None:
        self._matcher = matcher
        self._start_after_id = start_after_id
        self._vocab_size = vocab_size

    def allowed(self) -> Tensor | None:
        """Bool [vocab] of the ids that may come next; None when all may."""
        if self._start_after_id is not None:
            return None
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        bits = np.unpackbits(packed, count=self._vocab_size, bitorder="little")
        return torch.from_numpy(bits).bool()

    def advance(self, token_id: int) -> bool:
        """Note a produced id. True when the output is complete and nothing but its end can follow."""
        if self._start_after_id is not None:
            if token_id == self._start_after_id:
                self._start_after_id = None
            return False
        if not self._matcher.consume_token(token_id):
            log.warning("a grammar refused id %d: %s", token_id, self._matcher.get_error())
            raise EngineError("the grammar refused what it had allowed itself")
        return self._matcher.is_stopped()


def without_control_texts(tokenizer_json: Path) -> str:
    """tokenizer.json whose added tokens have texts that no answer contains.

    A string of a schema may read "<think>". It is to be spelled out: with the control token as its one
    spelling, the library allows that id and then refuses it, because control tokens are no text.
    """
    body = json.loads(tokenizer_json.read_text(encoding="utf-8"))
    for token in body["added_tokens"]:
        token["content"] = f"\0{token['id']}"
    return json.dumps(body)


def _refused(reason: str, param: str) -> EngineError:
    return EngineError(
        f"the grammar cannot be used: {reason}", status=400, code="invalid_grammar", param=param
    )
