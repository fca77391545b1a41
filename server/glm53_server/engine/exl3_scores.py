"""Log-probabilities from logits and from exllamav3's result dicts."""

from __future__ import annotations

import math
from typing import Any

import torch

from glm53_server.engine.base import GenRequest, TokenScore

SCORE_ROWS = 512  # rows of the prompt whose log-softmax is held at once


def score_rows(rows: torch.Tensor, targets: list[int], request: GenRequest) -> list[TokenScore]:
    """Scores of targets under log-probability rows [n, vocab]."""
    own = rows.gather(1, torch.tensor(targets, device=rows.device)[:, None])[:, 0].tolist()
    count = request.top_logprobs
    values, indices = torch.topk(rows, count, dim=1) if count else (rows[:, :0], rows[:, :0])
    top = [
        tuple(zip(i, v, strict=True))
        for i, v in zip(indices.tolist(), values.tolist(), strict=True)
    ]
    asked: list[tuple[tuple[int, float], ...]] = [()] * len(targets)
    if request.logprob_ids:
        picked = rows[:, list(request.logprob_ids)].tolist()
        asked = [tuple(zip(request.logprob_ids, row, strict=True)) for row in picked]
    return [TokenScore(t, lp, k, a) for t, lp, k, a in zip(targets, own, top, asked, strict=True)]


def prompt_scores(logits: torch.Tensor, start: int, request: GenRequest) -> tuple[TokenScore, ...]:
    """Scores of the prompt's ids from position `start` on, from its logits [prompt, vocab]."""
    scores = [TokenScore(request.prompt_ids[0], None)] if start == 0 else []
    first = max(start, 1)
    for begin in range(first, len(request.prompt_ids), SCORE_ROWS):
        targets = request.prompt_ids[begin : begin + SCORE_ROWS]
        rows = torch.log_softmax(logits[begin - 1 : begin - 1 + len(targets)].float(), dim=-1)
        scores += score_rows(rows, list(targets), request)
    return tuple(scores)


def generated_scores(part: dict[str, Any], ids: list[int], request: GenRequest) -> list[TokenScore]:
    """Scores of generated ids from a result's probabilities (softmax over raw logits)."""
    own = part["token_probs"].flatten().tolist()
    top_ids, top_probs = part["top_k_tokens"][0].tolist(), part["top_k_probs"][0].tolist()
    asked: list[tuple[tuple[int, float], ...]] = [()] * len(ids)
    if request.logprob_ids:
        rows = torch.log_softmax(part["logits"][0].float(), dim=-1)[
            :, list(request.logprob_ids)
        ].tolist()
        asked = [tuple(zip(request.logprob_ids, row, strict=True)) for row in rows]
    result: list[TokenScore] = []
    for i, token_id in enumerate(ids):
        top = tuple((t, _log(p)) for t, p in zip(top_ids[i], top_probs[i], strict=True))
        result.append(TokenScore(token_id, _log(own[i]), top[: request.top_logprobs], asked[i]))
    return result


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf
