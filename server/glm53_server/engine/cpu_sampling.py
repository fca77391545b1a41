"""Choosing the next id from logits on the CPU: one Sampler per generation.

The order is the usual one: bias and penalties, bans, temperature, top_k, top_p, min_p, draw. With
temperature 0 the last four are one argmax. Equal seeds and logits give equal ids.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from glm53_server.engine.base import Sampling

_OUT = float("-inf")


class Sampler:
    """Draws ids and remembers what was drawn, for the penalties. `vocab_size` is the logits' width."""

    def __init__(self, sampling: Sampling, prompt_ids: Iterable[int], vocab_size: int) -> None:
        self._sampling = sampling
        self._random = torch.Generator()
        if sampling.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(sampling.seed % 2**63)
        self._bias = _dense(sampling.logit_bias, vocab_size) if sampling.logit_bias else None
        self._counts = torch.zeros(vocab_size)
        self._seen = torch.zeros(vocab_size, dtype=torch.bool)
        self._seen[list(prompt_ids)] = True

    def draw(self, logits: Tensor, *, allowed: Tensor | None, banned: Iterable[int] = ()) -> int:
        """The next id from raw float32 logits [vocab], which stay as they are.

        `allowed` is a bool mask [vocab] of a grammar; `banned` ids are drawn only when nothing else may be.
        """
        logits = self._adjusted(logits)
        if allowed is not None:
            logits = logits.masked_fill(~allowed, _OUT)
        if ban := list(banned):
            left = logits.index_fill(0, torch.tensor(ban), _OUT)
            # A grammar may leave nothing but the end; then the end it is.
            logits = logits if left.max() == _OUT else left
        if self._sampling.temperature == 0:
            drawn = int(logits.argmax())
        else:
            drawn = self._draw_random(logits)
        self._counts[drawn] += 1
        self._seen[drawn] = True
        return drawn

    def _adjusted(self, logits: Tensor) -> Tensor:
        sampling = self._sampling
        if self._bias is not None:
            logits = logits + self._bias
        if sampling.repetition_penalty != 1.0:
            factor = sampling.repetition_penalty
            punished = torch.where(logits > 0, logits / factor, logits * factor)
            logits = torch.where(self._seen, punished, logits)
        if sampling.frequency_penalty:
            logits = logits - sampling.frequency_penalty * self._counts
        if sampling.presence_penalty:
            logits = logits - sampling.presence_penalty * (self._counts > 0)
        return logits

    def _draw_random(self, logits: Tensor) -> int:
        """Draw by temperature after top_k, top_p and min_p, each over what the one before left."""
        sampling = self._sampling
        # From the maximum down in float64: a tiny temperature must not overflow to inf - inf.
        scaled = (logits - logits.max()).double() / sampling.temperature
        width = min(sampling.top_k or logits.numel(), logits.numel())
        if width == logits.numel() and sampling.top_p >= 1.0:
            ids, probabilities = None, scaled.softmax(-1)
        else:
            kept, ids = scaled.topk(width)
            probabilities = kept.softmax(-1)
            before = probabilities.cumsum(-1) - probabilities
            # The best id always stays, even with top_p 0.
            before[0] = -1.0
            probabilities = probabilities.masked_fill(before >= sampling.top_p, 0.0)
        if sampling.min_p:
            floor = sampling.min_p * probabilities.max()
            probabilities = probabilities.masked_fill(probabilities < floor, 0.0)
        place = int(torch.multinomial(probabilities, 1, generator=self._random))
        return place if ids is None else int(ids[place])


def _dense(bias: Iterable[tuple[int, float]], vocab_size: int) -> Tensor:
    dense = torch.zeros(vocab_size)
    for token_id, value in bias:
        dense[token_id] += value
    return dense
