"""Requests as jobs of exllamav3, its samplers and filters, and scores of prompts: on a scripted generator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from exl3_stage import (
    CACHE_TOKENS,
    VOCAB,
    generator,
    make_session,
    request,
    started,
)

from glm53_server.engine import exl3_session
from glm53_server.engine.base import (
    EngineError,
    Grammar,
    Sampling,
)
from glm53_server.engine.exl3_sampler import make_sampler
from glm53_server.engine.exl3_session import Session


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    return make_session(monkeypatch)


def test_a_prompt_that_never_fits_makes_no_job(session: Session) -> None:
    with pytest.raises(EngineError) as refused:
        session.add(request(prompt_ids=(1,) * (CACHE_TOKENS - 1)), None)
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")
    assert generator().active_jobs == []
    assert not session.has_work
    job = started(session, request(prompt_ids=(1,) * (CACHE_TOKENS - 2), max_tokens=50))
    assert job.arguments["max_new_tokens"] == 1


def test_a_request_becomes_a_job(session: Session) -> None:
    sampling = Sampling(temperature=0, seed=11)
    session.add(
        request(sampling=sampling, stop_ids=frozenset({7, 3}), min_tokens=2, logprobs=True,
                top_logprobs=5, logprob_ids=(1,)), "a filter",
    )  # fmt: skip
    arguments = generator().active_jobs[0].arguments
    assert arguments["input_ids"].tolist() == [[1, 2, 3]]
    assert arguments["input_ids"].dtype == torch.long
    wanted = {
        "max_new_tokens": 9, "min_new_tokens": 2, "seed": 11, "stop_conditions": [3, 7],
        "filters": ["a filter"], "return_top_tokens": 5, "return_probs": True,
        "return_logits": True, "max_rq_tokens": None, "identifier": "r",
    }  # fmt: skip
    assert {key: arguments[key] for key in wanted} == wanted


def test_long_answers_reserve_less_than_they_may_need(session: Session) -> None:
    cache: Any = session.loaded.cache
    cache.max_num_tokens = 100_000
    job = started(session, request(max_tokens=90_000))
    assert job.arguments["max_new_tokens"] == 90_000
    assert job.arguments["max_rq_tokens"] == exl3_session.RESERVE_TOKENS


@pytest.mark.parametrize("start", [0, 1, 5, 599])
def test_scores_of_a_prompt_longer_than_one_batch_of_rows(session: Session, start: int) -> None:
    ids = tuple(int(i) for i in torch.randint(0, VOCAB, (600,), generator=torch.Generator().manual_seed(2)))  # fmt: skip
    logits = torch.randn(1, 600, VOCAB, generator=torch.Generator().manual_seed(3))
    exl3_model: Any = session.loaded.model
    exl3_model.forward = lambda *_: logits
    asked = request(prompt_ids=ids, prompt_logprobs_from=start, top_logprobs=3, logprob_ids=(6, 2))
    scores = session.score(asked).scores
    assert [s.token_id for s in scores] == list(ids[start:])
    if start == 0:
        assert scores[0].logprob is None
        scores = scores[1:]
    logs = logits[0].double().log_softmax(-1)
    for position, score in enumerate(scores, max(1, start)):
        row = logs[position - 1]
        assert score.logprob == pytest.approx(float(row[ids[position]]), abs=1e-5)
        assert [i for i, _ in score.top] == row.topk(3).indices.tolist()
        assert dict(score.asked) == pytest.approx({6: float(row[6]), 2: float(row[2])}, abs=1e-5)


def test_the_sampler_has_only_the_steps_it_needs(session: Session) -> None:
    def steps(**sampling: Any) -> list[tuple[Any, ...]]:
        return [step.step for step in make_sampler(Sampling(**sampling))]

    assert steps() == [("Sample",)]
    assert steps(temperature=0, top_p=0.5, min_p=0.1) == [("Argmax",)]
    assert steps(top_k=1) == [("Argmax",)]
    assert steps(temperature=0, logit_bias=((3, -1.0),)) == [("LogitBias", {3: -1.0}), ("Argmax",)]
    everything = steps(
        temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, frequency_penalty=0.1,
        presence_penalty=0.2, repetition_penalty=1.1, logit_bias=((1, 2.0),),
    )  # fmt: skip
    assert everything == [
        ("LogitBias", {1: 2.0}), ("RepP", 1.1), ("PresFreqP", 0.2, 0.1), ("Temperature", 0.7),
        ("MinP", 0.05), ("TopK", 40), ("TopP", 0.9), ("Sample",),
    ]  # fmt: skip


def test_top_p_keeps_the_token_that_crosses_p(session: Session) -> None:
    step = make_sampler(Sampling(top_p=0.6))[0]
    for probs, kept in (
        ([0.5, 0.3, 0.2], [0.5, 0.3, 0.0]),
        ([0.9, 0.1, 0.0], [0.9, 0.0, 0.0]),
        ([0.3, 0.29, 0.2], [0.3, 0.29, 0.2]),
    ):
        state = SimpleNamespace(probs=torch.tensor([probs]), state=None)
        step.run(state)
        torch.testing.assert_close(state.probs, torch.tensor([kept]))
        assert state.state == "sorted probabilities"


@pytest.mark.parametrize(
    ("grammar", "param", "said"),
    [
        (Grammar("gbnf", "root"), "gbnf", "not supported"),
        (Grammar("lark", "bad"), "lark", "no such rule"),
        (Grammar("json_schema", "bad"), "response_format", "no such rule"),
    ],
)
def test_a_grammar_that_cannot_be_is_the_clients_fault(
    session: Session, grammar: Grammar, param: str, said: str
) -> None:
    with pytest.raises(EngineError, match=said) as refused:
        session.compile_filter(grammar)
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize(
    ("kind", "argument"),
    [("json_schema", "json_schema"), ("regex", "regex"), ("lark", "lark_grammar")],
)
def test_a_grammar_becomes_a_filter(session: Session, kind: str, argument: str) -> None:
    found = session.compile_filter(Grammar(kind, "text", start_after_id=5))
    assert found.arguments == {
        argument: "text", "trigger_token": 5, "eos_after_completed": True,
    }  # fmt: skip
