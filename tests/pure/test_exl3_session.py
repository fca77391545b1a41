"""exllamav3's result dicts as our events, and requests as its jobs: on a scripted generator."""

from __future__ import annotations

import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from glm53_server.engine import exl3_session
from glm53_server.engine.base import (
    Done,
    EngineError,
    Failed,
    FinishReason,
    GenRequest,
    Grammar,
    PromptProgress,
    Sampling,
    Tokens,
)
from glm53_server.engine.exl3_sampler import make_sampler
from glm53_server.engine.exl3_session import Session

VOCAB, CACHE_TOKENS = 8, 512


class FakeJob:
    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.identifier = arguments["identifier"]
        self.prefill_done = True

    def is_prefill_done(self) -> bool:
        return self.prefill_done


class FakeGenerator:
    """Plays back `script`, one list of results per iterate()."""

    made: ClassVar[list[FakeGenerator]] = []

    def __init__(self, *_: Any, max_batch_size: int, max_chunk_size: int) -> None:
        self.settings = (max_batch_size, max_chunk_size)
        self.script: list[list[dict[str, Any]]] = []
        self.active_jobs: list[FakeJob] = []
        self.pending = 0
        self.cancelled: list[FakeJob] = []
        self.cleared = False
        FakeGenerator.made.append(self)

    def enqueue(self, job: FakeJob) -> None:
        self.active_jobs.append(job)

    def cancel(self, job: FakeJob) -> None:
        self.cancelled.append(job)
        self.active_jobs.remove(job)

    def clear_queue(self) -> None:
        self.cleared = True
        self.active_jobs.clear()

    def num_active_jobs(self) -> int:
        return len(self.active_jobs)

    def num_pending_jobs(self) -> int:
        return self.pending

    def iterate(self) -> list[dict[str, Any]]:
        return self.script.pop(0) if self.script else []


class FakeFilter:
    def __init__(self, _: Any, **arguments: Any) -> None:
        if "bad" in "".join(str(value) for value in arguments.values()):
            raise ValueError("no such rule")
        self.arguments = arguments


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    package = ModuleType("exllamav3")
    vars(package).update(Generator=FakeGenerator, Job=FakeJob, LLGuidanceFilter=FakeFilter)
    monkeypatch.setitem(sys.modules, "exllamav3", package)
    custom = ModuleType("custom")
    for name in (
        "LogitBias", "RepP", "PresFreqP", "Argmax", "Temperature", "MinP", "TopK", "TopP", "Sample",
    ):  # fmt: skip
        setattr(custom, f"SS_{name}", recorded(name))
    vars(custom).update(
        CustomSampler=lambda steps: steps, SS=SimpleNamespace(PROBS_S="sorted probabilities")
    )
    sampler = ModuleType("exllamav3.generator.sampler")
    vars(sampler).update(custom=custom)
    monkeypatch.setitem(sys.modules, "exllamav3.generator", ModuleType("exllamav3.generator"))
    monkeypatch.setitem(sys.modules, "exllamav3.generator.sampler", sampler)
    monkeypatch.setattr(FakeGenerator, "made", [])
    monkeypatch.setattr(exl3_session, "tier_stats", lambda *_: {})
    norm = SimpleNamespace(forward=lambda x, *_: x)
    model = SimpleNamespace(
        forward=lambda *_: torch.zeros(1, 1, VOCAB), modules=[norm, SimpleNamespace()]
    )
    page = torch.ones(4)
    layer = SimpleNamespace(get_tensors=lambda: [page])
    loaded: Any = SimpleNamespace(
        model=model,
        attached=[],
        page=page,
        cache=SimpleNamespace(max_num_tokens=CACHE_TOKENS, layers={0: layer}),
        tokenizer="the tokenizer",
        device=torch.device("cpu"),
    )
    return Session(loaded, None, max_batch=4, chunk_tokens=2048)


def recorded(name: str) -> type:
    def init(self: Any, *arguments: Any) -> None:
        self.step = (name, *arguments)
        self.top_p = arguments[0] if arguments else None

    return type(name, (), {"__init__": init})


def generator() -> FakeGenerator:
    return FakeGenerator.made[-1]


def request(name: str = "r", **changes: Any) -> GenRequest:
    return GenRequest(**{"request_id": name, "prompt_ids": (1, 2, 3), "max_tokens": 9, **changes})


def started(session: Session, asked: GenRequest) -> FakeJob:
    session.add(asked, None)
    return generator().active_jobs[-1]


def streaming(job: FakeJob, *ids: int, eos: bool = False, **more: Any) -> dict[str, Any]:
    result = {"job": job, "identifier": job.identifier, "stage": "streaming", "eos": eos, **more}
    return result | ({"token_ids": torch.tensor([ids])} if ids else {})


def play(session: Session, *results: dict[str, Any]) -> list[Any]:
    generator().script.append(list(results))
    return [event for _, event in session.iterate()]


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


def test_an_error_of_one_job_fails_that_job_only(session: Session) -> None:
    """exllamav3's error results name the job, not the identifier."""
    bad, good = started(session, request("bad")), started(session, request("good"))
    error = {"job": bad, "serial": 1, "stage": "error", "eos": True, "error": RuntimeError("boom")}
    generator().script.append([error, streaming(good, 4)])
    (bad_id, failed), (good_id, tokens) = session.iterate()
    assert (bad_id, good_id, tokens) == ("bad", "good", Tokens((4,)))
    assert isinstance(failed, Failed)
    assert "boom" in failed.error.message
    last = streaming(good, 5, eos=True, eos_reason="max_new_tokens")
    assert isinstance(play(session, last)[-1], Done)
    assert not session.has_work


def test_what_comes_after_a_cancellation_is_ignored(session: Session) -> None:
    job = started(session, request())
    assert session.cancel("r")
    assert not session.cancel("r")
    assert generator().cancelled == [job]
    assert play(session, streaming(job, 4)) == []
    assert not session.has_work


def test_nan_logits_fail_what_runs_and_nothing_after(session: Session) -> None:
    broken = started(session, request("a"))
    started(session, request("b"))
    first = generator()
    exl3_model: Any = session.loaded.model
    session._forward = lambda *_: torch.full((1, 1, VOCAB), math.nan)
    exl3_model.forward(torch.zeros(1, 1))
    events = play(session, streaming(broken, 4))
    assert [event.error.code for event in events] == ["nan_logits"] * 2
    assert first.cleared
    assert generator() is not first
    session._forward = lambda *_: torch.zeros(1, 1, VOCAB)
    exl3_model.forward(torch.zeros(1, 1))
    assert play(session, streaming(started(session, request("c")), 4)) == [Tokens((4,))]


def test_a_nan_in_the_residual_stream_fails_the_request_and_empties_the_cache(
    session: Session,
) -> None:
    loaded: Any = session.loaded
    job = started(session, request())
    loaded.model.modules[-2].forward(torch.tensor([1.0, math.nan]))
    assert [event.error.code for event in play(session, streaming(job, 4))] == ["nan_logits"]
    assert loaded.page.tolist() == [0.0] * 4
    loaded.model.modules[-2].forward(torch.zeros(2))
    assert play(session, streaming(started(session, request("c")), 4)) == [Tokens((4,))]


def test_one_nan_among_many_numbers_is_seen(session: Session) -> None:
    started(session, request())
    logits = torch.zeros(2, 3, VOCAB)
    logits[1, 2, 5] = math.nan
    session._forward = lambda *_: logits
    exl3_model: Any = session.loaded.model
    exl3_model.forward(torch.zeros(1, 1))
    session._forward = lambda *_: torch.zeros(1, 1, VOCAB)
    exl3_model.forward(torch.zeros(1, 1))
    assert isinstance(play(session)[0], Failed)


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


class FakeLane:
    enabled, failed, recovers, recoveries = True, False, True, 0

    def recover(self) -> bool:
        self.recoveries += 1
        self.enabled = self.recovers
        return self.recovers


@pytest.fixture
def tiers(session: Session) -> Any:
    session.tiers = SimpleNamespace(  # pyright: ignore[reportAttributeAccessIssue]
        cpu_lane=FakeLane(), stager=None, lookahead=None, hold_prefill=False
    )
    return session.tiers


def test_a_hung_cpu_tier_fails_the_requests_and_is_left_out(session: Session, tiers: Any) -> None:
    job = started(session, request())
    tiers.cpu_lane.failed = True
    (failed,) = play(session, streaming(job, 4))
    assert isinstance(failed, Failed)
    assert "CPU tier" in failed.error.message
    assert not tiers.cpu_lane.enabled
    tiers.cpu_lane.failed, tiers.cpu_lane.recovers = False, False
    job = started(session, request("next"))
    assert tiers.cpu_lane.recoveries == 1
    assert play(session, streaming(job, 4)) == [Tokens((4,))]
    started(session, request("beside"))
    assert tiers.cpu_lane.recoveries == 1, "a tier must not come back in mid-stream"
    session.cancel("next")
    session.cancel("beside")
    tiers.cpu_lane.recovers = True
    started(session, request("later"))
    assert tiers.cpu_lane.enabled


def test_a_prompt_is_scored_without_the_cpu_tier(session: Session, tiers: Any) -> None:
    seen: list[bool] = []
    exl3_model: Any = session.loaded.model

    def forward(*_: Any) -> torch.Tensor:
        seen.append(tiers.cpu_lane.enabled)
        return torch.zeros(1, 3, VOCAB)

    exl3_model.forward = forward
    tiers.cpu_lane.enabled = True
    session.score(request(prompt_ids=(1, 2, 3), prompt_logprobs_from=0))
    assert seen == [False]
    assert tiers.cpu_lane.enabled


def test_the_cache_stays_in_prefill_while_a_prompt_is_ingested(
    session: Session, tiers: Any
) -> None:
    job = started(session, request())
    job.prefill_done = False
    play(session)
    assert tiers.hold_prefill
    job.prefill_done = True
    play(session)
    assert not tiers.hold_prefill
    generator().pending = 1
    play(session)
    assert not tiers.hold_prefill, (
        "a job may wait long for cache pages; the cache is not kept small"
    )


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


def test_dropping_everything_makes_a_fresh_generator(session: Session) -> None:
    first = generator()
    assert first.settings == (4, 2048)
    started(session, request())
    assert session.active == 1
    session.drop_all()
    assert first.cleared
    assert generator() is not first
    assert generator().settings == first.settings
    assert (session.active, session.has_work) == (0, False)


class FakeStager:
    """Books of a cache that can shrink: 64 MiB per chunk."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.given_up = 0

    def make_room(self, device: torch.device) -> int:
        del device
        self.given_up += 7
        return 64 << 20

    def take_back(self, device: torch.device) -> int:
        del device
        back, self.given_up = self.given_up, 0
        return back


@pytest.fixture
def stager(session: Session, tiers: Any, monkeypatch: pytest.MonkeyPatch) -> FakeStager:
    tiers.stager = FakeStager()
    monkeypatch.setattr(exl3_session, "make_room", FakeStager.make_room)
    monkeypatch.setattr(exl3_session, "take_back", FakeStager.take_back)
    return tiers.stager


@pytest.mark.parametrize(
    "refused",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    ],
)
def test_a_full_card_fails_the_job_shrinks_the_cache_and_grows_it_later(
    session: Session, stager: FakeStager, refused: BaseException
) -> None:
    job = started(session, request())
    (failed,) = play(session, {"job": job, "stage": "error", "eos": True, "error": refused})
    assert (failed.error.status, failed.error.code) == (503, "out_of_vram")
    assert "64 MiB" in failed.error.message
    assert stager.given_up == 7
    assert not session.has_work
    started(session, request("next"))
    assert stager.given_up == 0, "nothing was running: what fits is taken back"


def test_the_cache_does_not_grow_while_something_runs(session: Session, stager: FakeStager) -> None:
    started(session, request("runs"))
    stager.given_up = 3
    started(session, request("joins"))
    assert stager.given_up == 3


def test_a_cuda_failure_inside_one_job_concerns_the_engine(session: Session) -> None:
    job = started(session, request())
    broken = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(torch.AcceleratorError, match="illegal"):
        play(session, {"job": job, "stage": "error", "eos": True, "error": broken})
