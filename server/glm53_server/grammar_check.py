"""Compiles a grammar once before a request is admitted, so that a bad one is a clean 400.

Without llguidance nothing can be constrained: the request is refused, never answered unconstrained.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

from glm53_server.api_errors import invalid
from glm53_server.endless_schema import is_endless
from glm53_server.engine.base import Grammar

DEADLINE_S = 5.0
_KEPT = 256
_FUEL = 500_000  # lexer steps a grammar may cost to set up


class GrammarChecker:
    """One per app. Remembers what it has compiled, by text."""

    def __init__(self, tokenizer_json: Path, vocab_size: int, eos_ids: frozenset[int]) -> None:
        self._source = (str(tokenizer_json), vocab_size, sorted(eos_ids))
        self._tokenizer: Any = None
        self._verdicts: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._busy = asyncio.Lock()

    async def check(self, grammar: Grammar, param: str) -> None:
        """Raises ApiError(400) naming `param` for a grammar that cannot be used."""
        key = (grammar.kind, grammar.text)
        if key not in self._verdicts:
            async with self._busy:
                try:
                    async with asyncio.timeout(DEADLINE_S):
                        verdict = await asyncio.to_thread(self._compile, grammar)
                except TimeoutError:
                    verdict = f"it takes longer than {DEADLINE_S:.0f} s to compile"
            self._verdicts[key] = verdict
            while len(self._verdicts) > _KEPT:
                self._verdicts.popitem(last=False)
        if problem := self._verdicts[key]:
            raise invalid(f"{param} cannot be used: {problem}", param, "invalid_grammar")

    def _compile(self, grammar: Grammar) -> str:
        """What is wrong with a grammar; "" when nothing is."""
        if grammar.kind == "json_schema" and is_endless(_parsed(grammar.text)):
            return "the schema requires itself: no document of it has an end"
        try:
            import llguidance
        except ImportError:
            return "this server has no grammar support (pip install 'glm53ctl[server]')"
        if self._tokenizer is None:
            path, vocab_size, eos_ids = self._source
            self._tokenizer = llguidance.LLTokenizer(path, n_vocab=vocab_size, eos_token=eos_ids)
        translate = {
            "json_schema": llguidance.LLMatcher.grammar_from_json_schema,
            "regex": llguidance.LLMatcher.grammar_from_regex,
            "lark": llguidance.LLMatcher.grammar_from_lark,
        }[grammar.kind]
        try:
            limits = llguidance.LLParserLimits(initial_lexer_fuel=_FUEL)
            matcher = llguidance.LLMatcher(
                self._tokenizer, translate(grammar.text), log_level=0, limits=limits
            )
            if not matcher.get_error():
                matcher.compute_bitmask()
        except ValueError as err:
            return _first_line(str(err))
        return _first_line(matcher.get_error())


def _parsed(text: str) -> Any:
    """The document; None for what the compiler will refuse with better words."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _first_line(problem: str) -> str:
    return problem.strip().split("\n", 1)[0][:300]
