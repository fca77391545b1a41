"""Samples as the chat renderer writes them, cut into what is read and what is learned.

The text comes from the server's own template and the ids from its own tokenizer: a corpus in another
format than the one that is served cannot be made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from glm53_server.chat.markers import ASSISTANT, Control, Marker, PromptPiece
from glm53_server.chat.messages import Message
from glm53_server.chat.template import Tail, prompt_text, render

from .samples import Sample

_NEXT_SPEAKER = {"<|user|>", "<|observation|>"}
_TURNS = _NEXT_SPEAKER | {"<|system|>", ASSISTANT}


class Encoder(Protocol):
    def encode(self, pieces: Sequence[PromptPiece], /) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring pieces, all of them learned or none."""

    pieces: tuple[PromptPiece, ...]
    learned: bool


def spans(sample: Sample) -> list[Span]:
    """A conversation in spans. Learned: what the model writes in its live turns, up to the token that
    names the next speaker; in a sample without reasoning the empty `<think></think>` is read.
    """
    pieces = [*_pieces(sample, sample.messages), Control("<|user|>")]
    turns = [i for i, piece in enumerate(pieces) if piece == Control(ASSISTANT)]
    found: list[Span] = []
    at = 0
    for turn in turns[-len(sample.live_turns()) :]:
        opened = turn + (2 if sample.thinks else 3)  # <|assistant|> <think> [</think>]
        end = next(i for i in range(opened, len(pieces)) if _is_turn(pieces[i]))
        stop = end + 1 if pieces[end].text in _NEXT_SPEAKER else end  # pyright: ignore
        found += [Span(tuple(pieces[at:opened]), False), Span(tuple(pieces[opened:stop]), True)]
        at = stop
    return found


def prompt(sample: Sample, turn: int) -> list[PromptPiece]:
    """What the model reads before it writes message number `turn`."""
    tail = Tail.THINK if sample.thinks else Tail.NO_THINK
    return _pieces(sample, sample.messages[:turn], tail)


def text(sample: Sample) -> str:
    """The whole conversation, control tokens spelled out."""
    return prompt_text([piece for span in spans(sample) for piece in span.pieces])


def plain_texts(sample: Sample) -> Iterator[str]:
    """The text between control tokens, for the tokenizer's training."""
    for span in spans(sample):
        yield from (piece for piece in span.pieces if isinstance(piece, str))


def encode(sample: Sample, encoder: Encoder) -> tuple[list[int], list[bool]]:
    """Ids, and for each whether it is learned."""
    ids: list[int] = []
    learned: list[bool] = []
    for span in spans(sample):
        more = encoder.encode(span.pieces)
        ids += more
        learned += [span.learned] * len(more)
    return ids, learned


def _pieces(
    sample: Sample, messages: Sequence[Message], tail: Tail = Tail.NONE
) -> list[PromptPiece]:
    return render(messages, tools=sample.tools, effort=sample.effort, tail=tail)


def _is_turn(piece: PromptPiece) -> bool:
    return isinstance(piece, Control) and piece.text in _TURNS


def opened_reasoning(pieces: Sequence[PromptPiece]) -> bool:
    """Whether a prompt ends inside the reasoning."""
    return pieces[-1] == Control(Marker.THINK.value)
