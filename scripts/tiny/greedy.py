"""Greedy answers to held-out questions while training: one padded batch, no cache, the training forms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from glm53_server.tokenizer import Tokenizer

from .corpus import samples
from .judge import right
from .reading import read
from .rendering import prompt
from .samples import Sample, Split

_ROWS = 128
_STEP = 32


@dataclass(frozen=True, slots=True)
class Case:
    """A turn of a held-out conversation to be written."""

    sample: Sample
    turn: int
    ids: tuple[int, ...]


def cases(tokenizer: Tokenizer, seed: int, wanted: int, longest: int) -> list[Case]:
    """The first `wanted` live turns of the held-out stream whose prompts fit."""
    return list(islice(_cases(tokenizer, seed, longest), wanted))


def _cases(tokenizer: Tokenizer, seed: int, longest: int) -> Iterator[Case]:
    for sample in samples(seed, Split.HELD_OUT):
        for turn in sample.live_turns():
            ids = tuple(tokenizer.encode(prompt(sample, turn)))
            if len(ids) <= longest:
                yield Case(sample, turn, ids)


@torch.no_grad()
def accuracy(
    model: Any, tokenizer: Tokenizer, asked: Sequence[Case], budget: int
) -> dict[str, float]:
    """Share of right answers by task, and under `all`; none is longer than `budget` ids."""
    verdicts: dict[str, list[bool]] = defaultdict(list)
    by_length = sorted(asked, key=lambda case: len(case.ids))
    for first in range(0, len(by_length), _ROWS):
        group = by_length[first : first + _ROWS]
        for case, (ids, ended) in zip(
            group, generate(model, tokenizer, group, budget), strict=True
        ):
            said = read(case.sample, ids, tokenizer, ended=ended)
            verdict = right(case.sample, case.turn, said)
            verdicts[case.sample.task].append(verdict)
            verdicts["all"].append(verdict)
    return {task: sum(v) / len(v) for task, v in sorted(verdicts.items())}


def generate(
    model: Any, tokenizer: Tokenizer, group: Sequence[Case], budget: int
) -> list[tuple[list[int], bool]]:
    """The ids written after each prompt, without the one that ends the turn, and whether one did."""
    device = model.lm_head.weight.device
    rows = [list(case.ids) for case in group]
    open_rows = list(range(len(rows)))
    for _ in range(budget):
        width = -(-max(len(rows[i]) for i in open_rows) // _STEP) * _STEP
        padded = torch.tensor(
            [rows[i] + [0] * (width - len(rows[i])) for i in open_rows], device=device
        )
        last = torch.tensor([len(rows[i]) - 1 for i in open_rows], device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            hidden = model.model(input_ids=padded, use_cache=False).last_hidden_state
            logits = model.lm_head(hidden[torch.arange(len(open_rows), device=device), last])
        for i, following in zip(tuple(open_rows), logits.argmax(-1).tolist(), strict=True):
            if following in tokenizer.turn_end_ids:
                open_rows.remove(i)
            else:
                rows[i].append(following)
        if not open_rows:
            break
    return [
        (row[len(case.ids) :], i not in open_rows)
        for i, (case, row) in enumerate(zip(group, rows, strict=True))
    ]
