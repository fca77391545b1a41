"""Looking ahead on a card of paper: what may run beside what, and what is left when something breaks off."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glm53_kernels.cuda import MAX_COPIES, StepStruct
from glm53_server.moe import lookahead
from glm53_server.moe.lookahead import AUTO, Lookahead
from glm53_server.moe.pace import MOST

LAYERS, PICKS = 5, 8


class Stream:
    """Knows which work of every stream is done before its next one: a vector clock."""

    made: list[Stream]

    def __init__(self, *_: object) -> None:
        self.seen: dict[int, int] = {}
        self.cuda_stream = len(Stream.made)
        Stream.made.append(self)

    def wait_event(self, event: Event) -> None:
        self.seen = {n: max(self.seen.get(n, 0), event.seen.get(n, 0)) for n in {*self.seen, *event.seen}}  # fmt: skip

    def synchronize(self) -> None:
        pass


class Event:
    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def record(self, stream: Stream) -> None:
        self.seen = dict(stream.seen)


class Card:
    """Kernels that read or change residency; each must come after the one before it, whatever its stream."""

    def __init__(self) -> None:
        self.work: list[str] = []
        self.limits: list[int] = []
        self.failed, self.idle, self.alive = False, True, 0
        self._last = (0, 0)

    def run(self, stream: int, what: str) -> None:
        seen = Stream.made[stream].seen
        on, count = self._last
        assert seen.get(on, 0) >= count, f"{what} may overtake {self.work[-1]}"
        seen[stream] = seen.get(stream, 0) + 1
        self._last = stream, seen[stream]
        self.work.append(what)

    def cache_step(self, state: Any, step: StepStruct, stream: int) -> None:
        if not step.lookahead:
            return self.run(stream, f"step {step.layer}")
        assert state.copy_box
        assert 1 <= step.layer < LAYERS
        assert 1 <= step.admit_limit <= MAX_COPIES
        assert step.num_picks == step.num_protected == PICKS
        self.limits.append(step.admit_limit)
        return self.run(stream, f"guess {step.layer}")

    def settle(self, state: Any, stream: int) -> None:
        del state
        self.run(stream, "settle")

    def host_register(self, address: int, size: int) -> int:
        del size
        self.alive += 1
        return address

    def host_unregister(self, address: int) -> None:
        del address
        self.alive -= 1

    def copier_create(self, box: int, size: int) -> int:
        del box, size
        self.alive += 1
        return 7

    def copier_destroy(self, copier: int) -> None:
        assert copier == 7
        self.alive -= 1

    def copier_failed(self, copier: int) -> bool:
        assert copier == 7
        return self.failed

    def copier_drain(self, copier: int, limit_ms: int) -> bool:
        assert copier == 7
        assert limit_ms > 0
        return self.idle


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    monkeypatch.setattr(Stream, "made", [], raising=False)
    current = [Stream()]

    @contextmanager
    def entered(stream: Stream) -> Iterator[None]:
        current.append(stream)
        try:
            yield
        finally:
            current.pop()

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current[-1])
    return Card()


def ahead_of(card: Card, limit: int, guess: Any = None) -> Lookahead:
    residency: Any = SimpleNamespace(
        kernels=card,
        layout=SimpleNamespace(layers=LAYERS, record_bytes=64),
        device=torch.device("cpu"),
        state=SimpleNamespace(copy_box=0),
        new_step=lambda layer: StepStruct(layer=layer),
    )
    picks = torch.arange(PICKS)
    return Lookahead(residency, guess or (lambda layer, x: picks), limit)


class Broken(Exception):
    """A forward pass that ends in its middle."""


def forward(ahead: Lookahead, card: Card, rows: int, break_at: int = -1) -> None:
    """A decode step as ExpertTiers makes it; it may break off at any of its calls."""
    calls = 0

    def here() -> None:
        nonlocal calls
        calls += 1
        if calls == break_at:
            raise Broken

    ahead.new_pass(rows)
    x, picks = torch.zeros(rows, 4), torch.arange(PICKS)
    for layer in range(LAYERS):
        here()
        ahead.before_step()
        card.cache_step(None, StepStruct(layer=layer), 0)
        here()
        card.run(0, f"gather {layer}")
        ahead.after_step(layer, x, picks)


@pytest.mark.parametrize("seed", range(20))
def test_no_two_changes_of_residency_run_beside_each_other(card: Card, seed: int) -> None:
    """Passes of any number of rows, prefills, drains, passes that break off, a copy that fails."""
    chance = random.Random(seed)
    ahead = ahead_of(card, chance.choice([AUTO, 1, 3, 99]))
    forward(ahead, card, 1)
    for _ in range(60):
        match chance.choice(["pass"] * 5 + ["break", "break", "prefill", "drain", "fail"]):
            case "pass":
                forward(ahead, card, chance.randrange(1, 9))
            case "break":
                with pytest.raises(Broken):
                    forward(ahead, card, 1, chance.randrange(1, 2 * LAYERS + 1))
            case "prefill":
                ahead.new_pass(0)
                ahead.drain()
                card.run(0, "evict")
            case "drain":
                ahead.drain()
                card.run(0, "shrink")
            case _:
                card.failed = card.failed or chance.random() < 0.2
    assert {"settle", "guess 1"} <= set(card.work)
    ahead.close()
    assert card.alive == 0


def test_one_that_nobody_closes_ends_its_thread_before_its_memory_goes(card: Card) -> None:
    ahead = ahead_of(card, 1)
    forward(ahead, card, 1)
    assert card.alive == 2, "the thread and the registered memory"
    del ahead
    gc.collect()
    assert card.alive == 0


def test_it_is_closed_once(card: Card) -> None:
    ahead = ahead_of(card, 1)
    ahead.close()
    ahead.close()
    assert card.alive == 0
    assert ahead._residency.state.copy_box == 0


def test_layers_are_guessed_one_ahead_and_none_behind_the_last(card: Card) -> None:
    forward(ahead_of(card, 2), card, 1)
    expected = [f"{what} {layer + (what == 'guess')}" for layer in range(LAYERS) for what in ("step", "gather", "guess")]  # fmt: skip
    assert card.work == expected[:-1]
    assert card.limits == [2] * (LAYERS - 1)


def test_no_answer_is_no_guess(card: Card) -> None:
    ahead = ahead_of(card, 2, guess=lambda layer, x: None)
    forward(ahead, card, 1)
    forward(ahead, card, 1)
    assert card.limits == []


def test_after_a_failed_copy_nothing_is_guessed_and_no_step_waits(card: Card) -> None:
    for limit in (AUTO, 3):
        ahead = ahead_of(card, limit)
        forward(ahead, card, 1)
        card.failed, card.idle, card.limits = True, False, []
        for _ in range(3):
            forward(ahead, card, 1)
        ahead.drain()  # what never comes is not waited for
        assert card.limits == []
        assert ahead.limit == 0
        assert ahead._residency.state.copy_box == 0
        card.failed, card.idle = False, True


def test_copies_that_do_not_end_keep_their_slots(card: Card) -> None:
    """What drains is about to give slots or memory away: it must not."""
    ahead = ahead_of(card, 1)
    forward(ahead, card, 1)
    card.idle = False
    with pytest.raises(RuntimeError, match="did not end within"):
        ahead.drain()
    assert "settle" not in card.work
    card.idle = True
    ahead.drain()
    assert card.work[-1] == "settle"


def test_every_number_of_rows_has_its_own_pace(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams come and go: two share well with many copies, one with none. Prefills take long."""
    now_s = [0.0]
    monkeypatch.setattr(lookahead.time, "monotonic", lambda: now_s[0])
    ahead = ahead_of(card, AUTO)
    assert ahead.paces is not None
    for turn in range(120):
        rows = 1 + turn % 2
        ahead.new_pass(0)
        assert ahead.limit == 0
        now_s[0] += 50.0
        for _ in range(100):
            ahead.new_pass(rows)
            now_s[0] += 0.05 + (-0.005 if rows == 2 else 0.005) * ahead.limit
    assert {rows: pace.best for rows, pace in ahead.paces.items()} == {1: 0, 2: MOST}
    assert max(max(pace.took_s.values()) for pace in ahead.paces.values()) < 0.2


def test_rows_that_change_at_every_step_start_as_the_rows_say(card: Card) -> None:
    """No step follows one of its kind: nothing is measured, and nothing goes wrong."""
    ahead = ahead_of(card, AUTO)
    assert ahead.paces is not None
    for step in range(2000):
        rows = 1 + step % 8
        ahead.new_pass(rows)
        assert ahead.limit == min(rows, MOST)
    assert all(pace.took_s == {} for pace in ahead.paces.values())
