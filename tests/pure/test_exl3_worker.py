"""The engine thread over a scripted session: delivery, cancellation, the end."""

from __future__ import annotations

import asyncio
import threading

from exl3_worker_stage import FakeSession, endless, job, read, running, stopped, until

from glm53_server.engine.base import (
    Done,
    Event,
    Failed,
    FinishReason,
    PromptProgress,
    PromptScores,
    Tokens,
)


def test_every_reader_gets_its_own_events_and_one_end() -> None:
    async def scenario() -> None:
        session = FakeSession()
        async with running(session) as worker:
            jobs = [job(name) for name in "abc"]
            for one in jobs:
                worker.add(one, f"filter of {one.request.request_id}")
            for one in jobs:
                events = await read(one)
                assert events == [Tokens((1,)), Tokens((2,)), Tokens((3,)), Done(FinishReason.LENGTH, 1, 3)]  # fmt: skip
            assert session.filters == [f"filter of {name}" for name in "abc"]
            await until(lambda: worker.running == 0 and worker.waiting == 0)
            counters = worker.counters
            assert (counters.requests, counters.failed, counters.cancelled) == (3, 0, 0)
            assert (counters.prompt_tokens, counters.completion_tokens) == (3, 9)
            assert len(session.threads) == 1

    asyncio.run(scenario())


def test_cancelling_in_mid_stream_frees_the_place_and_others_go_on() -> None:
    async def scenario() -> None:
        session = endless()
        async with running(session) as worker:
            gone, stays = job("gone"), job("stays")
            worker.add(gone, None)
            worker.add(stays, None)
            await gone.arrived.get()
            worker.cancel(gone)
            assert isinstance((await read(gone))[-1], Done)
            assert session.cancelled == ["gone"]
            seen = session.produced["stays"]
            await until(lambda: session.produced["stays"] > seen + 5)
            assert (worker.counters.cancelled, worker.running) == (1, 1)

    asyncio.run(scenario())


def test_a_job_cancelled_before_its_turn_never_starts() -> None:
    async def scenario() -> None:
        hold = threading.Event()

        def wait(_: FakeSession) -> list[tuple[str, Event]]:
            hold.wait(10)
            return []

        session = FakeSession(wait)
        async with running(session) as worker:
            first, second = job("first"), job("second")
            worker.add(first, None)
            await until(lambda: session.has_work)
            worker.add(second, None)
            worker.cancel(second)
            hold.set()
            await read(first)
            assert "second" not in session.produced

    asyncio.run(scenario())


def test_cancelling_what_has_ended_changes_nothing() -> None:
    async def scenario() -> None:
        async with running(FakeSession()) as worker:
            done = job("done")
            worker.add(done, None)
            await read(done)
            worker.cancel(done)
            after = job("after")
            worker.add(after, None)
            assert len(await read(after)) == 4
            assert worker.counters.cancelled == 0
            assert done.arrived.empty()

    asyncio.run(scenario())


def test_stopping_ends_running_jobs_and_says_so_last() -> None:
    async def scenario() -> None:
        session = endless()
        async with running(session) as worker:
            one = job("one")
            worker.add(one, None)
            await one.arrived.get()
            await stopped(worker)
            failed = (await read(one))[-1]
            assert isinstance(failed, Failed)
            assert (failed.error.status, failed.error.code) == (503, "engine_stopped")
            assert not worker.alive

    asyncio.run(scenario())


def test_scores_only_need_no_generation() -> None:
    async def scenario() -> None:
        session = endless()
        async with running(session) as worker:
            one = job("one", max_tokens=0, prompt_logprobs_from=0)
            worker.add(one, None)
            assert await read(one) == [PromptScores(()), Done(FinishReason.LENGTH, 1, 0)]
            assert session.produced == {}

    asyncio.run(scenario())


def test_scores_come_before_the_first_token() -> None:
    async def scenario() -> None:
        async with running(FakeSession()) as worker:
            one = job("one", prompt_logprobs_from=1)
            worker.add(one, None)
            events = await read(one)
            assert isinstance(events[0], PromptScores)
            assert isinstance(events[1], Tokens)

    asyncio.run(scenario())


def test_the_pass_that_brings_a_first_token_was_the_prompts() -> None:
    def slow_first(session: FakeSession) -> list[tuple[str, Event]]:
        threading.Event().wait(0.05)
        return FakeSession.iterate(session)

    async def scenario() -> None:
        async with running(FakeSession(slow_first)) as worker:
            one = job("one")
            worker.add(one, None)
            await read(one)
            assert worker.counters.prefill_s >= 0.05
            assert worker.counters.decode_s < 0.05

    asyncio.run(scenario())


def test_prefill_time_and_decode_time_are_told_apart() -> None:
    def slow_prompt(session: FakeSession) -> list[tuple[str, Event]]:
        threading.Event().wait(0.05)
        return [(name, PromptProgress(1, 2)) for name in session.requests]

    async def scenario() -> None:
        async with running(FakeSession(slow_prompt)) as worker:
            one = job("one")
            worker.add(one, None)
            assert (await read(one))[0] == PromptProgress(1, 2)
            await until(lambda: worker.counters.steps == 4)
            assert worker.counters.prefill_s >= 0.05
            assert worker.counters.decode_s < worker.counters.prefill_s

    asyncio.run(scenario())
