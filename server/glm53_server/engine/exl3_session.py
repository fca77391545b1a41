"""One loaded exllamav3 model with its synchronous Generator, spoken to in our own values.

Used by one thread. Takes GenRequests, returns events; text, stop strings and EOS handling beyond ids
stay outside. Knows the generator's jobs and result dicts; nothing else does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from glm53_server.engine.base import (
    Done,
    EngineError,
    Event,
    Failed,
    FinishReason,
    GenRequest,
    Grammar,
    PromptProgress,
    PromptScores,
    Sampling,
    Tokens,
    TokenScore,
)
from glm53_server.engine.exl3_model import LoadedModel, detach
from glm53_server.engine.exl3_stats import tier_stats
from glm53_server.moe.layer import ExpertTiers

PAGE_TOKENS = 256
# A job reserves cache for at most this much output; longer answers are requeued by the generator,
# so that a request without max_tokens does not keep every other stream waiting.
RESERVE_TOKENS = 8192
SCORE_ROWS = 512
STATS_INTERVAL_S = 0.5
FILTER_KINDS = {"json_schema": "json_schema", "regex": "regex", "lark": "lark_grammar"}


def make_sampler(sampling: Sampling) -> Any:
    """The smallest exllamav3 sampler stack for these parameters (neutral steps are left out)."""
    from exllamav3.generator.sampler import custom

    class InclusiveTopP(custom.SS_TopP):
        """Keeps the token that crosses p, as everybody defines top-p; 1.5.1's own step drops it."""

        def run(self, state: Any) -> None:
            before = state.probs.cumsum(dim=-1) - state.probs
            state.probs *= before < self.top_p
            state.state = custom.SS.PROBS_S

    steps: list[Any] = []
    if sampling.logit_bias:
        steps.append(custom.SS_LogitBias(dict(sampling.logit_bias)))
    if sampling.repetition_penalty != 1.0:
        steps.append(custom.SS_RepP(sampling.repetition_penalty))
    if sampling.presence_penalty or sampling.frequency_penalty:
        steps.append(custom.SS_PresFreqP(sampling.presence_penalty, sampling.frequency_penalty))
    if sampling.temperature == 0 or sampling.top_k == 1:
        return custom.CustomSampler([*steps, custom.SS_Argmax()])
    if sampling.temperature != 1.0:
        steps.append(custom.SS_Temperature(sampling.temperature))
    if sampling.min_p:
        steps.append(custom.SS_MinP(sampling.min_p))
    if sampling.top_k:
        steps.append(custom.SS_TopK(sampling.top_k))
    if sampling.top_p < 1.0:
        steps.append(InclusiveTopP(sampling.top_p))
    return custom.CustomSampler([*steps, custom.SS_Sample()])


@dataclass(slots=True)
class _Running:
    request: GenRequest
    job: Any
    produced: int = 0
    cached: int = 0


class Session:
    """Generator, jobs and tiers. Not thread-safe: one thread calls everything but compile_filter."""

    def __init__(
        self, loaded: LoadedModel, tiers: ExpertTiers | None, *, max_batch: int, chunk_tokens: int
    ) -> None:
        self.loaded = loaded
        self.tiers = tiers
        self._max_batch = max_batch
        self._chunk_tokens = chunk_tokens
        self._running: dict[str, _Running] = {}
        self._nan = torch.zeros(1, dtype=torch.bool, device=loaded.device)
        self._stats_at = 0.0
        self.tier_stats: dict[str, object] | None = (
            None  # a snapshot, refreshed on the engine thread
        )
        self._forward = loaded.model.forward
        loaded.model.forward = self._guarded_forward
        self._generator = self._new_generator()

    def _new_generator(self) -> Any:
        from exllamav3 import Generator

        return Generator(
            self.loaded.model,
            self.loaded.cache,
            self.loaded.tokenizer,
            max_batch_size=self._max_batch,
            max_chunk_size=self._chunk_tokens,
        )

    def _guarded_forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        logits = self._forward(*args, **kwargs)
        # One flag for all rows, read after the step's own wait: free of a synchronisation.
        torch.logical_or(self._nan, torch.isnan(logits).any(), out=self._nan)
        return logits

    @property
    def has_work(self) -> bool:
        return bool(self._running)

    @property
    def active(self) -> int:
        """Jobs that hold cache pages now."""
        return self._generator.num_active_jobs()

    def room(self, prompt_tokens: int) -> int:
        """Output tokens that fit beside a prompt in the whole cache; may be negative."""
        return self.loaded.cache.max_num_tokens - prompt_tokens - 1

    def compile_filter(self, grammar: Grammar) -> Any:
        """An exllamav3 filter; may take a second. Any thread. Raises EngineError(400)."""
        from exllamav3 import LLGuidanceFilter

        kind = FILTER_KINDS.get(grammar.kind)
        param = "response_format" if grammar.kind == "json_schema" else grammar.kind
        if kind is None:
            raise EngineError(
                f"grammars of kind {grammar.kind!r} are not supported",
                status=400, code="unsupported_parameter", param=param,
            )  # fmt: skip
        try:
            return LLGuidanceFilter(
                self.loaded.tokenizer,
                trigger_token=grammar.start_after_id,
                eos_after_completed=True,
                **{kind: grammar.text},
            )
        except (ValueError, RuntimeError) as err:
            raise EngineError(str(err), status=400, code="invalid_value", param=param) from err

    def add(self, request: GenRequest, grammar_filter: Any) -> None:
        """Enqueue a generation. Raises EngineError when the cache can never hold it."""
        from exllamav3 import Job

        room = self.room(len(request.prompt_ids))
        if room < 1:
            raise EngineError(
                f"the prompt has {len(request.prompt_ids)} tokens; the cache holds {self.loaded.cache.max_num_tokens}",
                status=400, code="context_length_exceeded", param="prompt",
            )  # fmt: skip
        self._recover_lane()
        max_new = min(request.max_tokens, room)
        job = Job(
            input_ids=torch.tensor([request.prompt_ids], dtype=torch.long),
            max_new_tokens=max_new,
            min_new_tokens=request.min_tokens,
            sampler=make_sampler(request.sampling),
            seed=request.sampling.seed,
            stop_conditions=sorted(request.stop_ids),
            filters=[grammar_filter] if grammar_filter is not None else None,
            return_top_tokens=max(request.top_logprobs, 1) if request.logprobs else 0,
            return_probs=request.logprobs,
            return_logits=bool(request.logprob_ids),
            max_rq_tokens=RESERVE_TOKENS if max_new > 2 * RESERVE_TOKENS else None,
            identifier=request.request_id,
        )
        self._generator.enqueue(job)
        self._running[request.request_id] = _Running(request, job)

    def cancel(self, request_id: str) -> bool:
        """Drop a generation; True when it was known."""
        running = self._running.pop(request_id, None)
        if running is None:
            return False
        self._generator.cancel(running.job)
        return True

    def iterate(self) -> list[tuple[str, Event]]:
        """One round of prefill chunks and one decode step. Raises what exllamav3 raises."""
        if self.tiers is not None:
            jobs = self._generator.active_jobs
            self.tiers.hold_prefill = any(not job.is_prefill_done() for job in jobs) or bool(
                self._generator.num_pending_jobs() and len(jobs) < self._max_batch
            )
        results = self._generator.iterate()
        self._refresh_stats()
        if self._lane_failed():
            return self._fail_all(
                EngineError("the CPU tier did not answer in time; the engine goes on without it")
            )
        if bool(self._nan.item()):
            self._nan.zero_()
            return self._fail_all(EngineError("the model produced NaN logits", code="nan_logits"))
        events: list[tuple[str, Event]] = []
        for result in results:
            request_id = result["job"].identifier  # error results carry no identifier of their own
            running = self._running.get(request_id)
            if running is not None:
                events += [(request_id, event) for event in self._events(running, result)]
                if result["eos"]:
                    self._running.pop(request_id, None)
        return events

    def _lane_failed(self) -> bool:
        """Switch a CPU tier off that timed out; the engine goes on in exact mode."""
        lane = self.tiers.cpu_lane if self.tiers is not None else None
        if lane is None or not lane.failed:
            return False
        lane.enabled = False
        return True

    def _recover_lane(self) -> None:
        """Between requests, try a CPU tier again that was switched off."""
        lane = self.tiers.cpu_lane if self.tiers is not None else None
        if lane is not None and not lane.enabled and not self._running:
            lane.recover()

    def _refresh_stats(self) -> None:
        now = time.monotonic()
        if self.tiers is not None and now - self._stats_at > STATS_INTERVAL_S:
            self.tier_stats = tier_stats(self.loaded, self.tiers)
            self._stats_at = now

    def _events(self, running: _Running, result: dict[str, Any]) -> Iterator[Event]:
        stage = result["stage"]
        if stage == "prefill":
            yield PromptProgress(int(result["curr_progress"]), int(result["max_progress"]))
        elif stage == "error":
            yield Failed(EngineError(f"generation failed: {result['error']}"))
        elif stage == "streaming":
            yield from self._streaming_events(running, result)

    def _streaming_events(self, running: _Running, result: dict[str, Any]) -> Iterator[Event]:
        parts = [result, result["held"]] if result["eos"] and "held" in result else [result]
        ids: list[int] = []
        scores: list[TokenScore] = []
        for part in parts:
            if "token_ids" in part:
                new = part["token_ids"].flatten().tolist()
                ids += new
                if running.request.logprobs:
                    scores += _scores(part, new, running.request)
        stop_id = result.get("eos_triggering_token_id") if result["eos"] else None
        if stop_id is not None and (not ids or ids[-1] != stop_id):
            ids.append(int(stop_id))
            if running.request.logprobs:
                scores.append(TokenScore(int(stop_id), None))
        running.produced += len(ids)
        if ids:
            yield Tokens(tuple(ids), tuple(scores))
        if result["eos"]:
            reason = (
                FinishReason.LENGTH
                if result["eos_reason"] == "max_new_tokens"
                else FinishReason.STOP
            )
            yield Done(
                reason,
                len(running.request.prompt_ids),
                running.produced,
                int(result.get("cached_tokens", 0)),
                int(stop_id) if stop_id is not None else None,
            )

    def _fail_all(self, error: EngineError) -> list[tuple[str, Event]]:
        failed: list[tuple[str, Event]] = [
            (request_id, Failed(error)) for request_id in self._running
        ]
        self.drop_all()
        return failed

    def drop_all(self) -> None:
        """Forget every job and start a fresh Generator over the same cache."""
        self._running.clear()
        self._generator.clear_queue()
        self._generator = self._new_generator()

    def close(self) -> None:
        """Give everything back. The engine thread has ended."""
        self._running.clear()
        self._generator.clear_queue()
        torch.cuda.synchronize(self.loaded.device)
        detach(self.loaded)
        if self.tiers is not None and self.tiers.cpu_lane is not None:
            self.tiers.cpu_lane.close()
        self.loaded.model.unload()
        if self.loaded.arena is not None:
            self.loaded.arena.close()

    @torch.inference_mode()
    def score(self, request: GenRequest) -> PromptScores:
        """Teacher-forced scores of the prompt, in one forward without the cache (prefill kernels)."""
        assert request.prompt_logprobs_from is not None
        start = request.prompt_logprobs_from
        ids = torch.tensor([request.prompt_ids], dtype=torch.long)
        logits = self.loaded.model.forward(ids, {"attn_mode": "flash_attn_nc"})[0]
        scores = [TokenScore(request.prompt_ids[0], None)] if start == 0 else []
        first = max(start, 1)
        for begin in range(first, len(request.prompt_ids), SCORE_ROWS):
            targets = request.prompt_ids[begin : begin + SCORE_ROWS]
            rows = torch.log_softmax(logits[begin - 1 : begin - 1 + len(targets)].float(), dim=-1)
            scores += _score_rows(rows, list(targets), request)
        return PromptScores(tuple(scores))


def _score_rows(rows: torch.Tensor, targets: list[int], request: GenRequest) -> list[TokenScore]:
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


def _scores(part: dict[str, Any], ids: list[int], request: GenRequest) -> list[TokenScore]:
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
