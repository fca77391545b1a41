"""Token ids to text and markers, one request at a time: a character is never split.

Only the bytes of an incomplete character are held. A truly invalid byte gives one U+FFFD; bytes that
never became a character are dropped at the end and at a marker.
"""

from __future__ import annotations

import codecs
from collections.abc import Set as AbstractSet

from .chat.markers import Piece
from .tokenizer import Tokenizer


class Detokenizer:
    """Feed it ids in order. Ids in `hidden` have no text."""

    def __init__(self, tokenizer: Tokenizer, *, hidden: AbstractSet[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> Piece:
        """The marker of this id, or the text it completes (possibly empty)."""
        marker = self._tokenizer.markers.get(token_id)
        if marker is not None:
            self._decoder.reset()
            return marker
        if token_id in self._hidden:
            return ""
        return self._decoder.decode(self._tokenizer.bytes_of(token_id))
