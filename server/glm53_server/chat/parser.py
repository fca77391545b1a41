"""The output parser: a model's pieces become reasoning, content and tool calls.

Pure, and independent of how the output was cut into pieces: only concatenations matter. It never
sees the request; its start state comes from the tail of the rendered prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from .arguments import Schema
from .calls import CallParser, Ending
from .markers import Marker, Piece

MAX_NAME_CHARS = 256  # a longer or spaced head of a call is text that mentions the marker
_MAX_HEAD_CHARS = 1024  # with the white space around the name


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    index: int


ParserEvent = Reasoning | Content | CallStart | CallArguments | CallEnd


class _State(Enum):
    REASONING = auto()
    REASONING_HEAD = auto()  # `<tool_call>` in reasoning: a call only if a declared name follows
    CONTENT = auto()
    HEAD = auto()  # `<tool_call>` in content, until the name is confirmed
    CALL = auto()


class OutputParser:
    """`feed` pieces, then `finish` once. `tools` maps names to parameter schemas; None: no tools."""

    def __init__(self, *, reasoning: bool, tools: Mapping[str, Schema | None] | None) -> None:
        self._state = _State.REASONING if reasoning else _State.CONTENT
        self._tools = tools
        self._events: list[ParserEvent] = []
        self._reasoning_seen = False
        self._newlines: str = ""  # at the end of the reasoning so far: trimmed if it ends here
        self._content_seen = False
        self._segment_seen = False  # visible text since the last call
        self._spaces: list[str] = []  # white space that begins a segment
        self._head = ""
        self._call = CallParser(None)
        self._calls = 0
        self._open = False

    @property
    def may_be_content(self) -> bool:
        """True while what comes next can end up in the content."""
        return self._state in {_State.CONTENT, _State.HEAD}

    @property
    def in_reasoning(self) -> bool:
        return self._state in {_State.REASONING, _State.REASONING_HEAD}

    @property
    def calls(self) -> int:
        """Calls started so far."""
        return self._calls

    @property
    def call_open(self) -> bool:
        """True while the last call's arguments are unfinished."""
        return self._open

    def feed(self, pieces: Iterable[Piece]) -> list[ParserEvent]:
        """Events that these pieces complete, in order."""
        for piece in pieces:
            if piece != "":
                self._one(piece)
        return self._taken()

    def finish(self, *, length: bool) -> list[ParserEvent]:
        """Events that the end releases. `length`: the budget cut the output, so nothing is added."""
        match self._state:
            case _State.REASONING_HEAD if not length:
                self._reason(Marker.CALL.value + self._head)
            case _State.HEAD if not length:
                self._write(self._head)
            case _State.CALL:
                self._emit_arguments(self._call.finish(length=length))
                self._after_call()
            case _:
                pass
        if not self._content_seen and not self._calls:
            rest = "".join(self._spaces).lstrip("\n")
            if rest:
                self._events.append(Content(rest))
        return self._taken()

    def _taken(self) -> list[ParserEvent]:
        events, self._events = self._events, []
        return events

    def _one(self, piece: Piece) -> None:
        match self._state:
            case _State.REASONING:
                self._in_reasoning(piece)
            case _State.REASONING_HEAD:
                self._in_reasoning_head(piece)
            case _State.CONTENT:
                self._in_content(piece)
            case _State.HEAD:
                self._in_head(piece)
            case _State.CALL:
                self._emit_arguments(self._call.feed(piece))
                self._after_call()

    def _in_reasoning(self, piece: Piece) -> None:
        match piece:
            case str():
                self._reason(piece)
            case Marker.THINK_END:
                self._state = _State.CONTENT
            case Marker.THINK if not self._reasoning_seen:
                pass  # repeated: the prompt has opened it already
            case Marker.CALL if self._tools:
                self._state, self._head = _State.REASONING_HEAD, ""
            case _:
                self._reason(piece.value)

    def _in_reasoning_head(self, piece: Piece) -> None:
        tools = self._tools or {}
        if isinstance(piece, str):
            self._head += piece
            name, fits = self._head.strip(), len(self._head) <= _MAX_HEAD_CHARS
            growing = self._head.lstrip() == name and any(tool.startswith(name) for tool in tools)
            if fits and (name in tools or growing):
                return
        elif piece in {Marker.KEY, Marker.CALL_END} and self._head.strip() in tools:
            self._start_call(piece)
            return
        self._state = _State.REASONING
        self._reason(Marker.CALL.value + self._head)
        if isinstance(piece, Marker):
            self._in_reasoning(piece)

    def _in_content(self, piece: Piece) -> None:
        visible = self._content_seen or self._calls > 0
        match piece:
            case str():
                self._write(piece)
            case Marker.THINK_END if not visible:
                pass
            case Marker.THINK if not visible:
                self._state = _State.REASONING
            case Marker.CALL if self._tools is not None:
                self._state, self._head = _State.HEAD, ""
            case Marker.CALL_END if self._tools is not None:
                pass
            case _:
                self._write(piece.value)

    def _in_head(self, piece: Piece) -> None:
        if isinstance(piece, str):
            self._head += piece
            name = self._head.strip()
            fits = len(name) <= MAX_NAME_CHARS and len(self._head) <= _MAX_HEAD_CHARS
            if fits and len(name.split()) <= 1:
                return
        elif piece in {Marker.KEY, Marker.CALL_END} and self._head.strip():
            self._start_call(piece)
            return
        self._state = _State.CONTENT  # not a call: drop the marker, keep the text
        self._write(self._head)
        if isinstance(piece, Marker):
            self._in_content(piece)

    def _start_call(self, piece: Marker) -> None:
        name, tools = self._head.strip(), self._tools or {}
        self._events.append(CallStart(self._calls, name))
        self._calls += 1
        self._open, self._state = True, _State.CALL
        self._call = CallParser(tools.get(name))
        if piece is Marker.CALL_END:
            self._emit_arguments(self._call.feed(piece))
            self._after_call()

    def _after_call(self) -> None:
        if self._call.ending is None:
            return
        self._events.append(CallEnd(self._calls - 1))
        self._open = self._segment_seen = False
        self._spaces, self._head = [], ""
        self._state = _State.HEAD if self._call.ending is Ending.NEXT else _State.CONTENT

    def _emit_arguments(self, text: str) -> None:
        if text:
            self._events.append(CallArguments(self._calls - 1, text))

    def _reason(self, text: str) -> None:
        text = self._newlines + text
        if not self._reasoning_seen:
            text = text.lstrip("\n")
        body = text.rstrip("\n")
        self._newlines = text[len(body) :]
        if body:
            self._reasoning_seen = True
            self._events.append(Reasoning(body))

    def _write(self, text: str) -> None:
        if not text:
            return
        if self._segment_seen:
            self._events.append(Content(text))
            return
        self._spaces.append(text)
        if not text.strip():
            return
        whole, self._spaces = "".join(self._spaces), []
        if not self._content_seen:
            whole = whole.lstrip("\n")
        self._content_seen = self._segment_seen = True
        self._events.append(Content(whole))
