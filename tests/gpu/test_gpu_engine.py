"""The GPU engine from load to close through Engine.submit, and the faults it must survive."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from gpu_engine_cases import (
    CACHE_TOKENS,
    PROMPTS,
    VOCAB,
    all_to_cpu,
    collect,
    ids_of,
    loaded,
    plan,
    request,
    run,
    stream,
    until,
    works,
)
from gpu_exact import random_ids
from gpu_harness import generator_of, greedy

from glm53_kernels import Linear
from glm53_server.engine.base import (
    EngineState,
    Event,
    Failed,
    FinishReason,
    PromptScores,
    Tokens,
)
from glm53_server.engine.exl3 import Exl3Engine
from glm53_server.engine.exl3_model import LoadedModel
from glm53_server.moe.cpu_tier import WATCHDOG_MS
from glm53ctl.plan import CpuTierPlan, Mode


@pytest.fixture(scope="module")
def exact() -> Iterator[Exl3Engine]:
    yield from loaded(plan(Mode.EXACT))


@pytest.fixture(scope="module")
def expected(stock: LoadedModel) -> list[list[int]]:
    """Stock's greedy answers, each prompt alone."""
    generator = generator_of(stock, 4, 2048)
    return [greedy(generator, [prompt], 40)[0][0] for prompt in PROMPTS]


def test_greedy_answers_are_stocks(exact: Exl3Engine, expected: list[list[int]]) -> None:
    for number, prompt in enumerate(PROMPTS):
        events = run(collect(exact, request(f"greedy-{number}", prompt)))
        assert ids_of(events) == expected[number]
        done = events[-1]
        assert (done.reason, done.prompt_tokens, done.completion_tokens) == (
            FinishReason.LENGTH, prompt.shape[1], 40,
        )  # fmt: skip


def test_four_streams_together_and_a_fifth_waits(exact: Exl3Engine) -> None:
    async def together() -> list[list[Event]]:
        prompts = [*PROMPTS, PROMPTS[0]]
        asked = [request(f"many-{i}", prompt) for i, prompt in enumerate(prompts)]
        return await asyncio.gather(*(collect(exact, one) for one in asked))

    assert [len(ids_of(events)) for events in run(together())] == [40] * 5
    until(lambda: exact.running == exact.queued == 0)


def test_a_stop_id_ends_the_answer(exact: Exl3Engine, expected: list[list[int]]) -> None:
    stop = expected[1][7]
    first = expected[1].index(stop)
    events = run(collect(exact, request("stop", PROMPTS[1], stop_ids=frozenset({stop}))))
    assert ids_of(events) == expected[1][: first + 1]
    assert (events[-1].reason, events[-1].stop_id) == (FinishReason.STOP, stop)


def test_scores_of_output_and_prompt(exact: Exl3Engine, expected: list[list[int]]) -> None:
    asked = request("scores", PROMPTS[2], tokens=5, logprobs=True, top_logprobs=3, prompt_logprobs_from=0)  # fmt: skip
    events = run(collect(exact, asked))
    assert ids_of(events) == expected[2][:5]
    scores = [score for event in events if isinstance(event, Tokens) for score in event.scores]
    assert [score.token_id for score in scores] == expected[2][:5]
    for score in scores:
        assert score.top[0][0] == score.token_id, "greedy is not the likeliest"
        assert score.logprob == pytest.approx(score.top[0][1], abs=1e-4)
        assert sorted(score.top, key=lambda pair: -pair[1]) == list(score.top)
    (prompt,) = [event for event in events if isinstance(event, PromptScores)]
    assert [score.token_id for score in prompt.scores] == PROMPTS[2][0].tolist()
    assert prompt.scores[0].logprob is None
    assert all(score.logprob is not None and score.logprob < 0 for score in prompt.scores[1:])


def test_a_cancelled_stream_frees_its_place(exact: Exl3Engine, expected: list[list[int]]) -> None:
    before = exact.stats()["requests_cancelled"]
    assert isinstance(before, int)

    async def leave() -> None:
        reader = stream(exact, request("gone", PROMPTS[1], tokens=5000))
        seen = 0
        async for event in reader:
            seen += isinstance(event, Tokens)
            if seen == 5:
                break
        await reader.aclose()

    run(leave())
    until(lambda: exact.running == 0, limit_s=5)
    assert exact.stats()["requests_cancelled"] == before + 1
    assert works(exact) == expected[0]


def test_a_client_gone_during_prefill(exact: Exl3Engine, expected: list[list[int]]) -> None:
    async def leave() -> None:
        reader = stream(exact, request("early", random_ids(VOCAB, 12_000, 4)))
        first = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0.05)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await reader.aclose()

    run(leave())
    until(lambda: exact.running == 0, limit_s=10)
    assert works(exact) == expected[0]


@pytest.mark.parametrize("length", [CACHE_TOKENS, CACHE_TOKENS - 1])
def test_an_over_long_prompt_is_refused(
    exact: Exl3Engine, expected: list[list[int]], length: int
) -> None:
    (failed,) = run(collect(exact, request("long", random_ids(VOCAB, length, 1))))
    assert isinstance(failed, Failed)
    assert (failed.error.status, failed.error.code) == (400, "context_length_exceeded")
    assert works(exact) == expected[0]


def test_nan_logits_fail_the_request_and_the_next_is_fine(
    exact: Exl3Engine, expected: list[list[int]]
) -> None:
    # A NaN in the residual stream: what an overflow in a layer leaves. Norm weights would not do,
    # the kernels behind them clamp.
    weight = exact._session.loaded.model.modules[0].embedding.weight
    row = int(torch.as_tensor(PROMPTS[0]).flatten()[-1])
    good = weight[row].detach().clone()
    with torch.inference_mode():
        weight[row].fill_(float("nan"))
    try:
        events = run(collect(exact, request("nan", PROMPTS[0])))
    finally:
        with torch.inference_mode():
            weight[row].copy_(good)
    assert isinstance(events[-1], Failed)
    assert events[-1].error.code == "nan_logits"
    assert exact.state is EngineState.READY
    assert works(exact) == expected[0]


def test_counters_of_the_cache_are_shown(exact: Exl3Engine) -> None:
    works(exact)
    time.sleep(1.0)
    works(exact)
    (cache,) = cast("list[dict[str, Any]]", exact.stats()["expert_cache"])
    assert cache["slots"] == 39
    assert cache["hits"] > 0
    assert cache["misses"] > 0
    assert 0 < cache["hit_rate"] < 1
    assert cache["bad_slots"] == cache["invalid_picks"] == 0


@pytest.fixture
def fast() -> Iterator[Exl3Engine]:
    yield from loaded(plan(Mode.FAST, CpuTierPlan(frozen_split=True)))


def occupy(engine: Exl3Engine, seconds: float) -> threading.Thread:
    """Keep the CPU tier's pool busy with other work: its next job cannot begin for that long."""
    tiers = engine._session.tiers
    assert tiers is not None
    assert tiers.cpu_lane is not None
    pool = tiers.cpu_lane.pool
    size, bits = 4096, 3
    linear = Linear(
        size, size, bits,
        torch.zeros(size * size * bits // 16, dtype=torch.int16),
        torch.ones(size, dtype=torch.float16),
        torch.ones(size, dtype=torch.float16),
    )  # fmt: skip

    def work(rows: int) -> float:
        started = time.monotonic()
        pool.linear_forward(linear, torch.ones(rows, size), torch.empty(rows, size), rows=rows)
        return time.monotonic() - started

    each_s = work(256) / 256
    thread = threading.Thread(target=work, args=(max(1, round(seconds / each_s)),))
    thread.start()
    time.sleep(0.2)
    return thread


def test_a_hung_cpu_tier_fails_its_request_and_comes_back(fast: Exl3Engine) -> None:
    tiers = fast._session.tiers
    assert tiers is not None
    lane = tiers.cpu_lane
    assert lane is not None
    all_to_cpu(fast)
    works(fast, "before")
    jobs = lane.counters().jobs
    assert jobs > 0
    hog = occupy(fast, 5 * WATCHDOG_MS / 1000)
    started = time.monotonic()
    events = run(collect(fast, request("hung", random_ids(VOCAB, 30, 77))))
    assert isinstance(events[-1], Failed)
    assert "CPU tier" in events[-1].error.message
    assert time.monotonic() - started < 3 * WATCHDOG_MS / 1000, "each layer waited by itself"
    assert fast.state is EngineState.DEGRADED
    assert lane.counters().timeouts > 0
    assert hog.is_alive(), "the pool was free too early for the next check"
    works(fast, "without the tier")
    hog.join()
    until(lambda: lane.recover(), limit_s=30)
    jobs = lane.counters().jobs
    works(fast, "with the tier again")
    assert fast.state is EngineState.READY
    assert lane.counters().jobs > jobs
