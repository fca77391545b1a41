"""What goes wrong in one session: NaN, a hung CPU tier, a full card; and what is switched off meanwhile."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

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

from glm53_server.engine import exl3_session
from glm53_server.engine.base import (
    Done,
    Failed,
    Tokens,
)
from glm53_server.engine.exl3_session import Session


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    return make_session(monkeypatch)


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


class FakeLane:
    enabled, failed, recovers, recoveries = True, False, True, 0

    def recover(self) -> bool:
        self.recoveries += 1
        self.enabled = self.recovers
        return self.recovers


@pytest.fixture
def tiers(session: Session) -> Any:
    session.tiers = SimpleNamespace(  # pyright: ignore[reportAttributeAccessIssue]
        cpu_lane=FakeLane(), stager=None, lookahead=None, hold_prefill=False,
        drain=lambda: None,
    )  # fmt: skip
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
