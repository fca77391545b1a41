"""One choice's way from token ids to output events; streams and whole answers share it.

ids -> budget -> detokeniser -> reasoning/tool parser -> stop matcher (content only) -> events. Pure:
it neither waits nor talks to the engine. Raw text endpoints run it without a parser.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from glm53_server.chat.markers import Marker, Piece
from glm53_server.chat.parser import (
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    OutputParser,
    ParserEvent,
    Reasoning,
)
from glm53_server.detokenizer import Detokenizer
from glm53_server.engine.base import Done, FinishReason, GenRequest, Tokens, TokenScore
from glm53_server.stop import StopMatcher
from glm53_server.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one choice. `reasoning` is part of `completion`, `cached` of `prompt`."""

    prompt: int
    completion: int
    reasoning: int = 0
    cached: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Visible text, with the scores of the tokens it completes when they were asked for."""

    text: str
    scores: tuple[TokenScore, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """Raw ids as they are produced, before the text they make; only raw endpoints look at it."""

    ids: tuple[int, ...]
    scores: tuple[TokenScore, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a choice. `matched` is the stop string or stop id that ended it, if one did."""

    reason: str  # "stop" | "length" | "tool_calls"
    usage: Usage
    matched: str | int | None = None


OutputEvent = Reasoning | TextDelta | TokenDelta | CallStart | CallArguments | CallEnd | Finish


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What a request asks of its output."""

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True
    one_call: bool = False  # end after the first complete tool call
    raw: bool = False  # markers are text; TokenDelta events are sent


@dataclass(slots=True)
class _Pending:
    score: TokenScore
    text: str


@dataclass(slots=True)
class _ContentScores:
    """Matches token scores to emitted content: the joined tokens of the scores are the content."""

    pending: deque[_Pending] = field(default_factory=deque[_Pending])
    surplus: str = ""  # emitted text that no finished token has claimed yet

    def add(self, score: TokenScore, text: str) -> None:
        self.pending.append(_Pending(score, text))

    def take(self, text: str) -> tuple[TokenScore, ...]:
        self.surplus += text
        taken: list[TokenScore] = []
        while self.pending and self.surplus:
            head = self.pending[0]
            if self.surplus.startswith(head.text):
                self.surplus = self.surplus[len(head.text) :]
                taken.append(self.pending.popleft().score)
            elif head.text.startswith(self.surplus):
                break
            else:  # its newlines were trimmed, or it was markup
                trimmed = head.text.lstrip("\n")
                self.pending.popleft()
                if trimmed and self.surplus.startswith(trimmed):
                    self.surplus = self.surplus[len(trimmed) :]
                    taken.append(head.score)
        return tuple(taken)


class ChoicePipeline:
    """Feed it the engine's Tokens, then `finish` with its Done. After `ended`, cancel the engine."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        request: GenRequest,
        options: OutputOptions,
        parser: OutputParser | None = None,
    ) -> None:
        hidden = tokenizer.hidden_ids if options.skip_special else frozenset[int]()
        self._detokenizer = Detokenizer(tokenizer, hidden=hidden | request.stop_ids)
        self._request = request
        self._options = options
        self._parser = parser
        self._stop = StopMatcher(options.stop, include_match=options.include_stop)
        self._scores = _ContentScores()
        self._count = self._reasoning = 0
        self._one_call_done = False

    @property
    def ended(self) -> bool:
        """True when nothing more may be emitted, whatever the engine still says."""
        return self._stop.matched is not None or self._one_call_done

    def feed(self, tokens: Tokens) -> list[OutputEvent]:
        """The events these ids complete."""
        events: list[OutputEvent] = []
        ids = tokens.ids[: self._request.max_tokens - self._count]
        for position, token_id in enumerate(ids):
            if self.ended:
                break
            self._count += 1
            score = tokens.scores[position] if tokens.scores else None
            if self._options.raw:
                events.append(TokenDelta((token_id,), (score,) if score else ()))
            events += self._one(token_id, score)
        return events

    def finish(self, done: Done | None) -> list[OutputEvent]:
        """The last events, ending with Finish. `done` is None when the pipeline ended it."""
        length = done is not None and done.reason is FinishReason.LENGTH
        events: list[OutputEvent] = []
        if not self.ended:
            if self._parser is not None:
                events += self._after_parser(self._parser.finish(length=length))
            if not self.ended:
                events += self._text(self._stop.flush())
        usage = Usage(
            prompt=len(self._request.prompt_ids),
            completion=self._count,
            reasoning=self._reasoning,
            cached=done.cached_tokens if done else 0,
        )
        matched = self._stop.matched
        if matched is None and done is not None:
            matched = done.stop_id
        events.append(Finish(self._reason(length=length), usage, matched))
        return events

    def _reason(self, *, length: bool) -> str:
        parser = self._parser
        if parser is not None and not self._one_call_done and parser.call_open:
            return "length"
        if length and not self.ended:
            return "length"
        return "tool_calls" if parser is not None and parser.calls else "stop"

    def _one(self, token_id: int, score: TokenScore | None) -> list[OutputEvent]:
        parser = self._parser
        if parser is not None and parser.in_reasoning:
            self._reasoning += 1
        piece: Piece = (
            "" if token_id in self._request.stop_ids else self._detokenizer.feed(token_id)
        )
        if parser is None:
            text = piece.value if isinstance(piece, Marker) else piece
            return self._text(self._unstopped(text))
        if score is not None and parser.may_be_content and token_id not in self._request.stop_ids:
            self._scores.add(score, piece.value if isinstance(piece, Marker) else piece)
        return self._after_parser(parser.feed((piece,)))

    def _after_parser(self, parsed: Iterable[ParserEvent]) -> list[OutputEvent]:
        events: list[OutputEvent] = []
        for event in parsed:
            if self.ended:
                break
            match event:
                case Content(text):
                    events += self._text(self._unstopped(text))
                case CallStart():
                    events += self._text(self._stop.flush())  # a match never spans a call
                    self._scores.pending.clear()
                    events.append(event)
                case CallEnd():
                    self._one_call_done = self._options.one_call
                    events.append(event)
                case _:
                    events.append(event)
        return events

    def _unstopped(self, text: str) -> str:
        """What the stop matcher lets through; it begins after the first `min_tokens` ids."""
        early = self._count <= self._request.min_tokens
        return text if early else self._stop.feed(text)

    def _text(self, text: str) -> list[OutputEvent]:
        return [TextDelta(text, self._scores.take(text))] if text else []
