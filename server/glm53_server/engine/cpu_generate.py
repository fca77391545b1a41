"""One generation on the CPU as a generator of steps: each item is what one forward pass brought.

Pure bookkeeping around CpuModel and Sampler; the engine decides when the next step runs and where
the events go.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence

import torch
from torch import Tensor

from glm53_server.engine.base import (
    Done,
    FinishReason,
    GenRequest,
    PromptProgress,
    PromptScores,
    Tokens,
    TokenScore,
)
from glm53_server.engine.cpu_grammar import Guide
from glm53_server.engine.cpu_model import Cache, CpuModel
from glm53_server.engine.cpu_sampling import Sampler
from glm53_server.engine.jobs import Step

# Larger chunks are no faster on two cores, and a cancelled prompt ends with its chunk.
PREFILL_TOKENS = 128
_PROGRESS_INTERVAL_S = 0.3


def generate(
    model: CpuModel, request: GenRequest, guide: Guide | None, context_tokens: int
) -> Iterator[Step]:
    """Run a request that passed Bounds.check; the last step ends with Done."""
    cache = model.new_cache()
    logits, scores = yield from _prefill(model, request, cache)
    first: Step = () if scores is None else (scores,)
    room = min(request.max_tokens, context_tokens - len(request.prompt_ids))
    if room == 0:
        yield (*first, _done(request, FinishReason.LENGTH, 0))
        return
    sampler = Sampler(request.sampling, request.prompt_ids, logits.numel())
    for count in range(1, room + 1):
        token_id = sampler.draw(
            logits,
            allowed=guide.allowed() if guide else None,
            banned=request.stop_ids if count <= request.min_tokens else (),
        )
        tokens = Tokens((token_id,), _output_scores(request, logits, token_id))
        complete = guide is not None and guide.advance(token_id)
        if token_id in request.stop_ids:
            yield (*first, tokens, _done(request, FinishReason.STOP, count, stop_id=token_id))
            return
        if complete or count == room:
            reason = FinishReason.STOP if complete else FinishReason.LENGTH
            yield (*first, tokens, _done(request, reason, count))
            return
        yield (*first, tokens)
        first = ()
        logits = model.logits((token_id,), cache)[0]


def _prefill(
    model: CpuModel, request: GenRequest, cache: Cache
) -> Generator[Step, None, tuple[Tensor, PromptScores | None]]:
    """Run the prompt through the model chunk by chunk, with a step between chunks.

    Returns the logits [vocab] after the last token, and the scores if the request wants them.
    """
    prompt = request.prompt_ids
    wanted = request.prompt_logprobs_from
    scores: list[TokenScore] = []
    if wanted == 0:
        scores.append(TokenScore(prompt[0], None))
    reported_s = time.monotonic()
    logits = None
    for start in range(0, len(prompt), PREFILL_TOKENS):
        if start:
            now_s = time.monotonic()
            due = now_s - reported_s >= _PROGRESS_INTERVAL_S
            reported_s = now_s if due else reported_s
            yield (PromptProgress(start, len(prompt)),) if due else ()
        end = min(start + PREFILL_TOKENS, len(prompt))
        scored = wanted is not None and wanted <= end
        logits = model.logits(prompt[start:end], cache, every=scored)
        if wanted is not None and scored:
            first = max(start + 1, wanted)  # row i predicts position start + i + 1
            predicted = prompt[first : end + 1]
            rows = logits[first - start - 1 :][: len(predicted)]
            scores += score(rows, predicted, request.top_logprobs, request.logprob_ids)
    assert logits is not None
    return logits[-1], None if wanted is None else PromptScores(tuple(scores))


def score(
    logits: Tensor, token_ids: Sequence[int], top: int, asked: Sequence[int]
) -> list[TokenScore]:
    """Scores of `token_ids` under the distributions of raw logits [len(token_ids), vocab]."""
    if not token_ids:
        return []
    logprobs = logits.log_softmax(-1)
    own = logprobs.gather(-1, torch.tensor(token_ids)[:, None])[:, 0].tolist()
    best = logprobs.topk(min(top, logprobs.shape[-1]))
    tops = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    others = logprobs[:, list(asked)].tolist()
    return [
        TokenScore(
            token_id,
            logprob,
            top=tuple(zip(ids, values, strict=True)),
            asked=tuple(zip(asked, other, strict=True)),
        )
        for token_id, logprob, (ids, values), other in zip(
            token_ids, own, tops, others, strict=True
        )
    ]


def _output_scores(request: GenRequest, logits: Tensor, token_id: int) -> tuple[TokenScore, ...]:
    if not (request.logprobs or request.top_logprobs or request.logprob_ids):
        return ()
    return tuple(score(logits[None], (token_id,), request.top_logprobs, request.logprob_ids))


def _done(
    request: GenRequest, reason: FinishReason, count: int, stop_id: int | None = None
) -> Done:
    return Done(reason, len(request.prompt_ids), count, stop_id=stop_id)
