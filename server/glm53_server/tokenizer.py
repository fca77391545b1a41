"""The checkpoint's tokenizer.json: text to ids without control tokens, ids to bytes.

Text from a request is encoded by a twin of the tokenizer that has no added tokens, so that it can
never become a control token whatever it spells.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glm53ctl.errors import BadModel

from .chat.markers import TURN_ENDS, Marker, PromptPiece

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HubTokenizer


class Tokenizer:
    """Thread-safe after construction. Ids outside the vocabulary have no bytes."""

    def __init__(self, path: Path) -> None:
        """Raises BadModel naming the file when it is missing or not a byte-level BPE tokenizer."""
        from tokenizers import Tokenizer as HubTokenizer

        try:
            source = path.read_text(encoding="utf-8")
            parsed = json.loads(source)
            self._whole = HubTokenizer.from_str(source)
            self._plain = HubTokenizer.from_str(_without_added_tokens(parsed))
        except OSError as err:
            raise BadModel(f"cannot read {path}: {err.strerror}") from err
        except Exception as err:  # the library raises its own bare Exception
            raise BadModel(f"{path} is not a tokenizer: {err}") from err
        added = {str(t["content"]): int(t["id"]) for t in parsed.get("added_tokens", [])}
        self._added = {text: id_ for text, id_ in added.items() if text}
        self._bytes = _token_bytes(self._whole, self._added)
        self.markers = {self._added[m.value]: m for m in Marker if m.value in self._added}
        special = {int(t["id"]) for t in parsed.get("added_tokens", []) if t.get("special")}
        # Checkpoints differ in which markers they flag special; for us markup is never "special".
        self.hidden_ids = frozenset(special - self.markers.keys())

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return len(self._bytes)

    @property
    def turn_end_ids(self) -> frozenset[int]:
        """Ids that end an assistant turn."""
        return frozenset(self._added[text] for text in TURN_ENDS if text in self._added)

    def id_of(self, control: str) -> int | None:
        """The id of a control token, by content."""
        return self._added.get(control)

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of one token; empty for an id that has none."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def encode(self, pieces: Iterable[PromptPiece]) -> list[int]:
        """Encode a prompt. Neighbouring text is joined first, so only control tokens split it."""
        ids: list[int] = []
        text: list[str] = []
        for piece in pieces:
            if isinstance(piece, str):
                text.append(piece)
            elif (token_id := self._added.get(piece.text)) is None:
                text.append(piece.text)
            else:
                ids += self._encode_text("".join(text))
                ids.append(token_id)
                text.clear()
        return ids + self._encode_text("".join(text))

    def encode_raw(self, text: str) -> list[int]:
        """Encode a raw prompt, in which control tokens are recognised."""
        return self._whole.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def decode(self, ids: Sequence[int], *, skip_hidden: bool = False) -> str:
        """Text of whole ids; an incomplete or invalid byte sequence becomes U+FFFD."""
        kept = (i for i in ids if not (skip_hidden and i in self.hidden_ids))
        return b"".join(self.bytes_of(i) for i in kept).decode("utf-8", "replace")

    def _encode_text(self, text: str) -> list[int]:
        if not text:
            return []
        # A batch of one: only the batch call releases the interpreter lock.
        return self._plain.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _without_added_tokens(parsed: dict[str, Any]) -> str:
    added = {token["content"] for token in parsed.get("added_tokens", [])}
    model = dict(parsed["model"])
    model["vocab"] = {text: id_ for text, id_ in model["vocab"].items() if text not in added}
    return json.dumps({**parsed, "added_tokens": [], "post_processor": None, "model": model})


def _token_bytes(whole: HubTokenizer, added: dict[str, int]) -> list[bytes]:
    """Bytes per id. A byte-level vocabulary spells each byte as one printable character."""
    alphabet = _byte_of_character()
    vocab = whole.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocab.values()) + 1)
    for text, token_id in vocab.items():
        known = text not in added and all(character in alphabet for character in text)
        table[token_id] = bytes(alphabet[c] for c in text) if known else text.encode()
    return table


def _byte_of_character() -> dict[str, int]:
    """The byte-level alphabet: printable Latin-1 stands for itself, the rest is moved to U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + rank): byte for rank, byte in enumerate(moved)}
