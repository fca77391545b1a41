"""exllamav3's result dicts as our events: on a scripted generator."""

from __future__ import annotations

import math

import pytest
import torch
from exl3_stage import (
    VOCAB,
    generator,
    make_session,
    play,
    request,
    started,
    streaming,
)

from glm53_server.engine.base import (
    Done,
    FinishReason,
    PromptProgress,
    Tokens,
)
from glm53_server.engine.exl3_session import Session


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    return make_session(monkeypatch)


def test_prefill_then_tokens_then_the_length_limit(session: Session) -> None:
    job = started(session, request())
    progress = {
        "job": job, "identifier": "r", "stage": "prefill", "eos": False, "curr_progress": 2,
        "max_progress": 3,
    }  # fmt: skip
    started_result = {"job": job, "identifier": "r", "stage": "started", "eos": False}
    assert play(session, started_result, progress) == [PromptProgress(2, 3)]
    assert play(session, streaming(job, 5)) == [Tokens((5,))]
    assert session.has_work
    last = streaming(job, 6, eos=True, eos_reason="max_new_tokens", cached_tokens=2)
    assert play(session, last) == [Tokens((6,)), Done(FinishReason.LENGTH, 3, 2, 2)]
    assert not session.has_work


def test_a_stop_id_is_in_the_held_part_and_counts(session: Session) -> None:
    job = started(session, request())
    held = {"text": "x", "token_ids": torch.tensor([[4, 7]])}
    end = streaming(job, eos=True, eos_reason="stop_token", eos_triggering_token_id=7, held=held)
    assert play(session, end) == [
        Tokens((4, 7)), Done(FinishReason.STOP, 3, 2, 0, stop_id=7),
    ]  # fmt: skip


def test_a_stop_id_that_was_not_held_is_added(session: Session) -> None:
    job = started(session, request(logprobs=True))
    end = streaming(job, eos=True, eos_reason="stop_token", eos_triggering_token_id=7)
    tokens, done = play(session, end)
    assert tokens.ids == (7,)
    assert [(s.token_id, s.logprob) for s in tokens.scores] == [(7, None)]
    assert (done.stop_id, done.completion_tokens) == (7, 1)


def test_tokens_of_half_a_character_come_with_the_other_half(session: Session) -> None:
    job = started(session, request())
    assert play(session, streaming(job)) == []
    assert play(session, streaming(job, 3, 4, 5)) == [Tokens((3, 4, 5))]


def test_output_and_held_part_of_the_last_result_keep_their_order(session: Session) -> None:
    job = started(session, request())
    held = {"token_ids": torch.tensor([[6]])}
    tokens, done = play(session, streaming(job, 5, eos=True, eos_reason="end_filter", held=held))
    assert tokens == Tokens((5, 6))
    assert done == Done(FinishReason.STOP, 3, 2)


def test_held_text_before_the_end_is_not_output(session: Session) -> None:
    job = started(session, request())
    assert play(session, streaming(job, held={"token_ids": torch.tensor([[6]])})) == []


def test_scores_are_natural_logs_of_the_raw_distribution(session: Session) -> None:
    job = started(session, request(logprobs=True, top_logprobs=2, logprob_ids=(0, 3)))
    logits = torch.randn(1, 2, VOCAB, generator=torch.Generator().manual_seed(1))
    probs = logits.softmax(-1)
    top = probs.topk(2, -1)
    (tokens,) = play(
        session,
        streaming(
            job, 5, 0, token_probs=torch.tensor([[float(probs[0, 0, 5]), 0.0]]),
            top_k_tokens=top.indices, top_k_probs=top.values, logits=logits,
        ),
    )  # fmt: skip
    logs = logits.log_softmax(-1)[0]
    first, second = tokens.scores
    assert (first.token_id, second.token_id) == (5, 0)
    assert first.logprob == pytest.approx(float(logs[0, 5]), abs=1e-6)
    assert second.logprob == -math.inf
    assert [i for i, _ in first.top] == top.indices[0, 0].tolist()
    assert [v for _, v in second.top] == pytest.approx(top.values[0, 1].log().tolist(), abs=1e-6)
    assert dict(second.asked) == pytest.approx(
        {0: float(logs[1, 0]), 3: float(logs[1, 3])}, abs=1e-6
    )


def test_more_alternatives_than_asked_for_are_dropped(session: Session) -> None:
    job = started(session, request(logprobs=True, top_logprobs=0))
    assert job.arguments["return_top_tokens"] == 1
    result = streaming(
        job, 2, token_probs=torch.tensor([[0.5]]), top_k_tokens=torch.tensor([[[2]]]),
        top_k_probs=torch.tensor([[[0.5]]]),
    )  # fmt: skip
    (tokens,) = play(session, result)
    assert tokens.scores[0].top == ()


def test_what_comes_after_a_cancellation_is_ignored(session: Session) -> None:
    job = started(session, request())
    assert session.cancel("r")
    assert not session.cancel("r")
    assert generator().cancelled == [job]
    assert play(session, streaming(job, 4)) == []
    assert not session.has_work
