"""The CPU engine on the tiny checkpoint: its numbers, and what it promises for each request."""

import asyncio
import json
import math
import sys
import threading

import pytest
from cpu_driver import REFERENCE, Driver, produced, tiny_plan
from tokenizers import Tokenizer

from glm53_server.engine import cpu
from glm53_server.engine.base import (
    Done,
    EngineState,
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
from glm53ctl.errors import UsageError

GREEDY = Sampling(temperature=0.0)
PROMPT = tuple(range(500, 520))


def greedy(max_tokens: int, prompt: tuple[int, ...] = PROMPT, **fields: object) -> GenRequest:
    return GenRequest("test", prompt, max_tokens, GREEDY, **fields)


def kl(reference: list[float], found: list[float]) -> float:
    """KL divergence over one set of ids, both sides renormalised over it."""
    reference_total = math.log(sum(map(math.exp, reference)))
    found_total = math.log(sum(map(math.exp, found)))
    pairs = zip(reference, found, strict=True)
    return sum(
        math.exp(r - reference_total) * ((r - reference_total) - (f - found_total))
        for r, f in pairs
    )


def prompt_scores(events: list) -> tuple[TokenScore, ...]:
    (scores,) = (event.scores for event in events if isinstance(event, PromptScores))
    return scores


def test_agrees_with_stock_exllamav3(
    tiny: Driver, panel: list, capsys: pytest.CaptureFixture[str]
) -> None:
    divergences, agreements = [], []
    for case in panel:
        start = case["prompt_len"]
        wanted = sorted({id_ for ids in case["top20_ids"] for id_ in ids})
        events = tiny.events(
            greedy(
                0,
                tuple(case["tokens"]),
                prompt_logprobs_from=start,
                top_logprobs=1,
                logprob_ids=tuple(wanted),
            )
        )
        rows = zip(prompt_scores(events), case["top20_ids"], case["top20_lp"], strict=True)
        for score, ids, reference in rows:
            asked = dict(score.asked)
            divergences.append(kl(reference, [asked[id_] for id_ in ids]))
            agreements.append(score.top[0][0] == ids[0])
    mean_kl = sum(divergences) / len(divergences)
    top1 = sum(agreements) / len(agreements)
    with capsys.disabled():
        sys.stdout.write(f" [mean KL {mean_kl:.2e}, top-1 {top1:.4f}] ")
    assert len(divergences) >= 400
    assert mean_kl <= 1e-4
    assert top1 >= 0.99


def test_greedy_continues_as_stock_exllamav3_did(tiny: Driver, panel: list) -> None:
    for case in panel[:3]:
        prompt = tuple(case["tokens"][: case["prompt_len"]])
        want = case["tokens"][case["prompt_len"] :][:24]
        assert tiny.ids(greedy(len(want), prompt)) == want
        assert tiny.ids(greedy(len(want), prompt)) == want


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_max_tokens_is_exact(tiny: Driver, max_tokens: int) -> None:
    events = tiny.events(greedy(max_tokens))
    assert len(produced(events)) == max_tokens
    assert events[-1] == Done(FinishReason.LENGTH, len(PROMPT), max_tokens)


def test_no_tokens_asked(tiny: Driver) -> None:
    assert tiny.events(greedy(0)) == [Done(FinishReason.LENGTH, len(PROMPT), 0)]


def test_stop_id_ends_and_is_reported(tiny: Driver) -> None:
    ids = tiny.ids(greedy(12))
    stop = ids[-1]
    first = ids.index(stop)
    events = tiny.events(greedy(50, stop_ids=frozenset({stop})))
    assert produced(events) == ids[: first + 1]
    assert events[-1] == Done(FinishReason.STOP, len(PROMPT), first + 1, stop_id=stop)


def test_min_tokens_holds_the_stop_back(tiny: Driver) -> None:
    stop = tiny.ids(greedy(1))[0]
    events = tiny.events(greedy(20, stop_ids=frozenset({stop}), min_tokens=5))
    assert stop not in produced(events)[:5]
    assert isinstance(events[-1], Done)
    assert events[-1].completion_tokens >= 6 or events[-1].reason is FinishReason.LENGTH


def test_streams_together_equal_streams_alone(tiny: Driver) -> None:
    requests = [greedy(4 + i, tuple(range(300 + 40 * i, 330 + 40 * i))) for i in range(5)]
    alone = [tiny.ids(request) for request in requests]

    async def together() -> list:
        return await asyncio.gather(*(tiny.collect(request) for request in requests))

    assert [produced(events) for events in tiny.run(together())] == alone


def test_seed_reproduces(tiny: Driver) -> None:
    def drawn(seed: int) -> list[int]:
        return tiny.ids(GenRequest("test", PROMPT, 8, Sampling(top_p=0.95, seed=seed)))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_penalty_and_bias_reach_the_sampler(tiny: Driver) -> None:
    first = tiny.ids(greedy(1))[0]
    biased = Sampling(temperature=0.0, logit_bias=((first, -100.0), (9, 200.0)))
    assert tiny.ids(GenRequest("test", PROMPT, 3, biased)) == [9, 9, 9]
    penalised = Sampling(temperature=0.0, logit_bias=((9, 200.0),), presence_penalty=1000.0)
    assert tiny.ids(GenRequest("test", PROMPT, 2, penalised))[1] != 9


def test_prompt_scores_equal_decode_scores(tiny: Driver) -> None:
    """The same positions once token by token, once teacher-forced in a prompt of three chunks."""
    prompt = tuple((i * 37) % 3900 + 20 for i in range(280))
    decoded = tiny.events(greedy(6, prompt, logprobs=True, top_logprobs=3, logprob_ids=(5,)))
    ids = produced(decoded)
    output = [score for event in decoded if isinstance(event, Tokens) for score in event.scores]
    forced = tiny.events(
        greedy(
            0,
            (*prompt, *ids),
            prompt_logprobs_from=len(prompt),
            top_logprobs=3,
            logprob_ids=(5,),
        )
    )
    assert [score.token_id for score in output] == ids
    for mine, again in zip(output, prompt_scores(forced), strict=True):
        assert mine.token_id == again.token_id == mine.top[0][0]
        assert mine.logprob == pytest.approx(again.logprob, abs=1e-3)
        assert mine.asked[0][0] == 5
        assert mine.asked[0][1] == pytest.approx(again.asked[0][1], abs=1e-3)
        assert [value for _, value in mine.top] == pytest.approx(
            [value for _, value in again.top], abs=1e-3
        )


def test_prompt_scores_cover_every_position(tiny: Driver) -> None:
    prompt = tuple((i * 53) % 3900 + 20 for i in range(150))
    events = tiny.events(greedy(2, prompt, prompt_logprobs_from=0))
    scores = prompt_scores(events)
    assert [score.token_id for score in scores] == list(prompt)
    assert scores[0].logprob is None
    assert all(score.logprob is not None and score.logprob < 0 for score in scores[1:])
    tail = tiny.events(greedy(0, prompt, prompt_logprobs_from=130))
    assert prompt_scores(tail) == scores[130:]


def test_scores_only_when_asked(tiny: Driver) -> None:
    plain = [event for event in tiny.events(greedy(2)) if isinstance(event, Tokens)]
    assert all(event.scores == () for event in plain)


@pytest.mark.parametrize(
    ("request_", "code", "param"),
    [
        (greedy(1, tuple([5] * 4096)), "context_length_exceeded", "prompt"),
        (greedy(1, ()), "invalid_value", "prompt"),
        (greedy(1, (5, 4096)), "invalid_value", "prompt"),
        (greedy(1, logprob_ids=(-1,)), "invalid_value", "logprob_ids"),
        (
            GenRequest("test", PROMPT, 1, Sampling(logit_bias=((4096, 1.0),))),
            "invalid_value",
            "logit_bias",
        ),
        (greedy(1, grammar=Grammar("regex", "a(")), "invalid_grammar", "regex"),
        (
            greedy(1, grammar=Grammar("json_schema", '{"type": "objekt"}')),
            "invalid_grammar",
            "response_format",
        ),
        (
            greedy(1, grammar=Grammar("json_schema", "[")),
            "invalid_grammar",
            "response_format",
        ),
        (greedy(1, grammar=Grammar("bnf", "x")), "unsupported_parameter", "bnf"),
    ],
)
def test_impossible_requests_fail_before_any_step(
    tiny: Driver, request_: GenRequest, code: str, param: str
) -> None:
    before = tiny.engine.steps
    events = tiny.events(request_)
    assert len(events) == 1
    assert isinstance(events[0], Failed)
    error = events[0].error
    assert (error.status, error.code, error.param) == (400, code, param)
    assert tiny.engine.steps == before
    assert len(tiny.ids(greedy(1))) == 1


def test_output_ends_with_the_context(tiny: Driver) -> None:
    small = Driver(cpu.load(tiny_plan(context_tokens=24), lambda *_: None))
    try:
        events = small.events(greedy(100))
        assert events[-1] == Done(FinishReason.LENGTH, 20, 4)
        assert produced(events) == tiny.ids(greedy(4))
        full = small.events(greedy(0, tuple(range(500, 524))))
        assert full == [Done(FinishReason.LENGTH, 24, 0)]
    finally:
        small.run(small.engine.close())


async def idle(driver: Driver) -> None:
    for _ in range(500):
        if driver.engine.running == driver.engine.queued == 0:
            return
        await asyncio.sleep(0.01)
    pytest.fail("a cancelled generation still runs after five seconds")


@pytest.mark.parametrize("read", [0, 3])
def test_cancel_frees_the_place(tiny: Driver, read: int) -> None:
    async def scenario() -> None:
        stream = tiny.engine.submit(greedy(2000))
        task = asyncio.ensure_future(anext(stream))
        for _ in range(read):
            await task
            task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await stream.aclose()
        await idle(tiny)
        steps = tiny.engine.steps
        await asyncio.sleep(0.1)
        assert tiny.engine.steps == steps

    tiny.run(scenario())


def test_cancel_in_the_middle_of_a_prompt(tiny: Driver) -> None:
    async def scenario() -> None:
        before = tiny.engine.steps
        stream = tiny.engine.submit(greedy(5, tuple([7] * 4000)))
        first = await anext(stream)
        assert isinstance(first, PromptProgress)
        assert 0 < first.done < first.total == 4000
        await stream.aclose()
        await idle(tiny)
        assert tiny.engine.steps - before < 25  # of 32 chunks

    tiny.run(scenario())


SCHEMA = {
    "type": "object",
    "properties": {"unit": {"enum": ["byte", "bit"]}, "known": {"type": "boolean"}},
    "required": ["unit", "known"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


def text_of(ids: list[int]) -> str:
    return Tokenizer.from_file(str(REFERENCE / "tiny" / "tokenizer.json")).decode(ids)


@pytest.mark.parametrize("min_tokens", [0, 60])
def test_grammar_shapes_the_output(tiny: Driver, min_tokens: int) -> None:
    """A finished grammar ends the output, whatever min_tokens says."""
    schema = Grammar("json_schema", json.dumps(SCHEMA))
    sampling = Sampling(temperature=0.7, seed=3)
    events = tiny.events(
        GenRequest(
            "test", PROMPT, 80, sampling, frozenset({0}), grammar=schema, min_tokens=min_tokens
        )
    )
    assert isinstance(events[-1], Done)
    assert events[-1].reason is FinishReason.STOP
    found = json.loads(text_of(produced(events)))
    assert found["unit"] in {"byte", "bit"}
    assert isinstance(found["known"], bool)


def test_grammar_starts_after_an_id(tiny: Driver) -> None:
    free = tiny.ids(greedy(4))
    grammar = Grammar("regex", "[0-9]{3}", start_after_id=free[3])
    ids = tiny.ids(greedy(12, grammar=grammar))
    start = free.index(free[3]) + 1
    assert ids[:start] == free[:start]
    assert text_of(ids[start:]).isdigit()
    assert len(text_of(ids[start:])) == 3


def test_stats_count(tiny: Driver) -> None:
    before = tiny.engine.stats()
    tiny.ids(greedy(5))
    after = tiny.engine.stats()
    json.dumps(after)
    assert after["requests"] == before["requests"] + 1
    assert after["completion_tokens"] == before["completion_tokens"] + 5
    assert after["prompt_tokens"] == before["prompt_tokens"] + len(PROMPT)
    assert after["decode_s"] > before["decode_s"]
    assert after["tokens_per_s"] > 0
    assert after["cpu"]["isa"] in {"scalar", "avx2", "avx512"}


def test_close_ends_running_streams_and_leaves_no_thread() -> None:
    threads = set(threading.enumerate())
    phases = []
    engine = cpu.load(tiny_plan(), lambda *progress: phases.append(progress))
    assert engine.state is EngineState.READY
    assert {phase for phase, _, _ in phases} == {"weights"}
    done = [done for _, done, _ in phases]
    assert done == sorted(done)
    assert phases[-1][1] == phases[-1][2] > 10_000_000

    async def scenario() -> None:
        stream = engine.submit(greedy(2000))
        await anext(stream)
        await engine.close()
        rest = [event async for event in stream]
        assert isinstance(rest[-1], Done)
        assert rest[-1].reason is FinishReason.CANCELLED
        await engine.close()
        late = [event async for event in engine.submit(greedy(1))]
        assert isinstance(late[0], Failed)
        assert late[0].error.status == 503
        assert set(threading.enumerate()) == threads

    asyncio.run(scenario())


def test_dummy_weights_are_refused() -> None:
    plan = tiny_plan()
    model = type(plan.model)(plan.model.path, "tiny", 4096, load_format="dummy")
    with pytest.raises(UsageError):
        cpu.load(type(plan)(plan.mode, plan.engine, model, plan.listen, plan.cpu), lambda *_: None)
