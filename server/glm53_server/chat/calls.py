"""One tool call, from its first `<arg_key>` to its end, turned into JSON text as it arrives.

Pure. The position rule decides whether a closer inside a value is markup or data: it needs what
follows, so a closer is held until the next piece.
"""

from __future__ import annotations

from enum import Enum, auto

from .arguments import Kind, Schema, json_value, quoted, value_kind
from .markers import Marker, Piece


class Ending(Enum):
    """How a call ended."""

    CLOSED = auto()
    NEXT = auto()  # by the `<tool_call>` of the next call, which is consumed


class _State(Enum):
    KEY = auto()
    AFTER_KEY = auto()
    VALUE = auto()
    VALUE_END_HELD = auto()  # `</arg_value>` seen: closes unless data follows
    CALL_END_HELD = auto()  # `</tool_call>` inside a value: data unless nothing or a call follows


class CallParser:
    """Feed it pieces; it returns fragments of the arguments JSON. `ending` is set once it is over."""

    def __init__(self, parameters: Schema | None) -> None:
        self._parameters = parameters
        self._state = _State.KEY
        self._key = ""
        self._held = ""  # white space, or a closer and the white space after it
        self._value = ValueWriter("", Kind.TEXT)
        self._written = False
        self.ending: Ending | None = None

    def feed(self, piece: Piece) -> str:
        """The arguments text that `piece` completes; often empty."""
        match self._state:
            case _State.KEY:
                return self._in_key(piece)
            case _State.AFTER_KEY:
                return self._after_key(piece)
            case _State.VALUE:
                return self._in_value(piece)
            case _State.VALUE_END_HELD | _State.CALL_END_HELD:
                return self._after_closer(piece)

    def finish(self, *, length: bool) -> str:
        """End of the output. A held closer closes the call, unless the budget cut the output."""
        held = self._state in {_State.VALUE_END_HELD, _State.CALL_END_HELD}
        return self._close(Ending.CLOSED) if held and not length else ""

    def _in_key(self, piece: Piece) -> str:
        if isinstance(piece, str):
            self._key += piece
            return ""
        match piece:
            case Marker.KEY_END:
                self._state, self._held = _State.AFTER_KEY, ""
                return ""
            case Marker.VALUE:
                return self._open_value()
            case Marker.KEY:
                self._key = ""
                return ""
            case Marker.CALL_END:
                return self._close_object(Ending.CLOSED)
            case Marker.CALL:
                return self._close_object(Ending.NEXT)
            case _:
                self._key += piece.value
                return ""

    def _after_key(self, piece: Piece) -> str:
        match piece:
            case str() if not piece.strip():
                self._held += piece
                return ""
            case Marker.VALUE:
                return self._open_value()
            case Marker.VALUE_END:
                opened = self._open_value()
                return opened + self._in_value(piece)
            case Marker.KEY:
                self._state, self._key = _State.KEY, ""
                return ""
            case Marker.KEY_END:
                return ""
            case Marker.CALL_END:
                return self._close_object(Ending.CLOSED)
            case Marker.CALL:
                return self._close_object(Ending.NEXT)
            case _:  # `<arg_value>` was forgotten: the text after the key is the value
                held, opened = self._held, self._open_value()
                return opened + self._value.write(held) + self._in_value(piece)

    def _in_value(self, piece: Piece) -> str:
        match piece:
            case str():
                return self._value.write(piece)
            case Marker.VALUE_END:
                self._state, self._held = _State.VALUE_END_HELD, piece.value
                return ""
            case Marker.CALL_END:
                self._state, self._held = _State.CALL_END_HELD, piece.value
                return ""
            case _:
                return self._value.write(piece.value)

    def _after_closer(self, piece: Piece) -> str:
        if isinstance(piece, str) and not piece.strip():
            self._held += piece
            return ""
        if piece is Marker.CALL:
            return self._close(Ending.NEXT)
        if self._state is _State.VALUE_END_HELD:
            if piece is Marker.CALL_END:
                return self._close(Ending.CLOSED)
            if piece is Marker.KEY:
                self._state, self._key = _State.KEY, ""
                return self._value.close()
        held, self._held = self._held, ""
        self._state = _State.VALUE
        return self._value.write(held) + self._in_value(piece)

    def _open_value(self) -> str:
        self._state, self._held = _State.VALUE, ""
        key = self._key.strip()
        lead = ", " if self._written else "{"
        self._written = True
        self._value = ValueWriter(f"{lead}{quoted(key)}: ", value_kind(self._parameters, key))
        return self._value.write("")

    def _close(self, ending: Ending) -> str:
        return self._value.close() + self._close_object(ending)

    def _close_object(self, ending: Ending) -> str:
        self.ending = ending
        return "}" if self._written else "{}"


class ValueWriter:
    """Writes one value. Strings stream; other kinds wait for their end, with the key before them."""

    def __init__(self, lead: str, kind: Kind) -> None:
        self._lead = lead
        self._kind = kind
        self._parts: list[str] = []

    def write(self, text: str) -> str:
        if self._kind is Kind.TEXT:
            return self._take_lead('"') + quoted(text)[1:-1]
        self._parts.append(text)
        if self._kind is Kind.TEXT_OR_NULL and text:
            held = "".join(self._parts)
            if not "null".startswith(held):
                self._kind = Kind.TEXT
                return self.write(held)
        return ""

    def close(self) -> str:
        if self._kind is Kind.TEXT:
            return self._take_lead('"') + '"'
        return self._take_lead("") + json_value("".join(self._parts), self._kind)

    def _take_lead(self, quote: str) -> str:
        lead, self._lead = self._lead, ""
        return lead + quote if lead else ""
