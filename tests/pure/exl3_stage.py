"""A Session of the GPU engine over a scripted generator, and the results that it plays."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from glm53_server.engine import exl3_session
from glm53_server.engine.base import (
    GenRequest,
)
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


def make_session(monkeypatch: pytest.MonkeyPatch) -> Session:
    """A Session over a scripted generator; exllamav3 itself is replaced by what it uses of it."""
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
