"""Stop strings over a text stream: the match is never emitted, a held prefix never lost.

Pure. The earliest end of a match wins, whatever the order of the strings or the cuts of the text.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """`feed` text and emit what it returns; after `matched` is set, emit nothing more."""

    def __init__(self, strings: Sequence[str], *, include_match: bool = False) -> None:
        self._strings = tuple(text for text in strings if text)
        self._include_match = include_match
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The text that can no longer be part of a match."""
        if self.matched is not None:
            return ""
        if not self._strings:
            return text
        text = self._held + text
        found = self._earliest(text)
        if found is not None:
            end, self.matched, self._held = *found, ""
            return text[: end if self._include_match else end - len(self.matched)]
        keep = self._suffix_chars(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The held text: what seemed to begin a match did not become one."""
        held, self._held = self._held, ""
        return held

    def _earliest(self, text: str) -> tuple[int, str] | None:
        """(end, string) of the match that ends first; of several ending there, the longest."""
        hits = [(start + len(s), -len(s), s) for s in self._strings if (start := text.find(s)) >= 0]
        if not hits:
            return None
        end, _, string = min(hits)
        return end, string

    def _suffix_chars(self, text: str) -> int:
        """Length of the longest end of `text` that is a beginning of a stop string."""
        longest = max(len(s) for s in self._strings) - 1
        for size in range(min(longest, len(text)), 0, -1):
            tail = text[-size:]
            if any(s.startswith(tail) for s in self._strings):
                return size
        return 0
