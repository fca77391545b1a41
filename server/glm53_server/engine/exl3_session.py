"""One loaded exllamav3 model with its synchronous Generator, spoken to in our own values.

Used by one thread. Takes GenRequests, returns events; text, stop strings and EOS handling beyond ids
stay outside. Knows the generator and its jobs; what a streaming result says is read in `exl3_results`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from glm53_server.engine.base import (
    EngineError,
    Event,
    Failed,
    GenRequest,
    Grammar,
    PromptProgress,
    PromptScores,
)
from glm53_server.engine.exl3_model import LoadedModel, clear_cache, detach, watch_residual
from glm53_server.engine.exl3_results import Running, streaming_events
from glm53_server.engine.exl3_sampler import make_sampler
from glm53_server.engine.exl3_scores import prompt_scores
from glm53_server.engine.exl3_stats import tier_stats
from glm53_server.engine.exl3_tiers import end_threads, save_heat
from glm53_server.moe.layer import ExpertTiers
from glm53_server.moe.pressure import is_out_of_memory, make_room, take_back

log = logging.getLogger(__name__)

# A job reserves cache for at most this much output; longer answers are requeued by the generator,
# so that a request without max_tokens does not keep every other stream waiting.
RESERVE_TOKENS = 8192
STATS_INTERVAL_S = 0.5
FILTER_KINDS = {"json_schema": "json_schema", "regex": "regex", "lark": "lark_grammar"}


class Session:
    """Generator, jobs and tiers. Not thread-safe: one thread calls everything but compile_filter."""

    def __init__(
        self, loaded: LoadedModel, tiers: ExpertTiers | None, *, max_batch: int, chunk_tokens: int
    ) -> None:
        self.loaded = loaded
        self.tiers = tiers
        self._max_batch = max_batch
        self._chunk_tokens = chunk_tokens
        self._running: dict[str, Running] = {}
        self._nan = torch.zeros(1, dtype=torch.bool, device=loaded.device)
        self._stats_at = 0.0
        # A snapshot, refreshed on the engine thread.
        self.tier_stats: dict[str, object] | None = None
        self._forward = loaded.model.forward
        loaded.model.forward = self._guarded_forward
        watch_residual(loaded, self._nan)
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
        self._recover()
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
        self._running[request.request_id] = Running(request, job)

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
            # Jobs that wait for cache pages may wait long: they do not keep the cache small.
            self.tiers.hold_prefill = any(
                not job.is_prefill_done() for job in self._generator.active_jobs
            )
        results = self._generator.iterate()
        self._refresh_stats()
        if self._lane_failed():
            return self._fail_all(
                EngineError("the CPU tier did not answer in time; the engine goes on without it")
            )
        if bool(self._nan.item()):
            self._nan.zero_()
            clear_cache(self.loaded)
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

    @contextmanager
    def _without_cpu_lane(self) -> Iterator[None]:
        """Scores of a prompt are stock's bits, also of a prompt that fits a decode step."""
        lane = self.tiers.cpu_lane if self.tiers is not None else None
        if lane is None:
            yield
            return
        enabled, lane.enabled = lane.enabled, False
        try:
            yield
        finally:
            lane.enabled = enabled

    def _recover(self) -> None:
        """Between requests, try a CPU tier again that was switched off, and VRAM that was given up."""
        if self.tiers is None or self._running:
            return
        lane, stager = self.tiers.cpu_lane, self.tiers.stager
        if lane is not None and not lane.enabled:
            lane.recover()
        if stager is not None and stager.given_up:
            self.tiers.drain()
            take_back(stager, self.loaded.device)

    def out_of_memory(self) -> EngineError:
        """An allocation was refused: make room in VRAM; returns what the failed requests are told."""
        stager = self.tiers.stager if self.tiers is not None else None
        given = 0
        if self.tiers is not None and stager is not None:
            self.tiers.drain()
            given = make_room(stager, self.loaded.device)
        log.warning("GPU memory ran out; the expert cache gave %d MiB back", given >> 20)
        return EngineError(
            "GPU memory ran out: another process took what was free. The expert cache gave "
            f"{given >> 20} MiB back; send the request again, or free the GPU",
            status=503, code="out_of_vram",
        )  # fmt: skip

    def _refresh_stats(self) -> None:
        now = time.monotonic()
        if self.tiers is not None and now - self._stats_at > STATS_INTERVAL_S:
            self.tier_stats = tier_stats(self.loaded, self.tiers)
            self._stats_at = now

    def _events(self, running: Running, result: dict[str, Any]) -> Iterator[Event]:
        stage = result["stage"]
        if stage == "prefill":
            yield PromptProgress(int(result["curr_progress"]), int(result["max_progress"]))
        elif stage == "error":
            yield Failed(self._job_error(result["error"]))
        elif stage == "streaming":
            yield from streaming_events(running, result)

    def _job_error(self, err: BaseException) -> EngineError:
        """What exllamav3 caught for one job. A CUDA failure concerns the engine: it is raised."""
        if is_out_of_memory(err):
            return self.out_of_memory()
        if isinstance(err, torch.AcceleratorError):
            raise err
        return EngineError(f"generation failed: {err}")

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
        """Give everything back. The engine thread has ended. Raises what a lost device says, when our own
        threads have ended too: they read memory that goes with this object.
        """
        loaded = self.loaded
        with ExitStack() as left:  # from the last to the first, whatever one of them meets
            if loaded.arena is not None:
                left.callback(loaded.arena.close)
            left.callback(loaded.model.unload)
            if self.tiers is not None:
                end_threads(self.tiers, left)
                left.callback(save_heat, self.tiers)
            left.callback(detach, loaded)
            left.callback(torch.cuda.synchronize, loaded.device)
            self._running.clear()
            self._generator.clear_queue()

    @torch.inference_mode()
    def score(self, request: GenRequest) -> PromptScores:
        """Teacher-forced scores of the prompt, in one forward without the cache (prefill kernels)."""
        assert request.prompt_logprobs_from is not None
        start = request.prompt_logprobs_from
        ids = torch.tensor([request.prompt_ids], dtype=torch.long)
        with self._without_cpu_lane():
            logits = self.loaded.model.forward(ids, {"attn_mode": "flash_attn_nc"})[0]
        return PromptScores(prompt_scores(logits, start, request))
