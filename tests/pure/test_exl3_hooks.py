"""The stand-ins for exllamav3's methods: they return what the stock method returns, and tell the tiers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from glm53_server.engine.exl3_hooks import LayerHook, PassHook, ResidualWatch


class Tiers:
    """Records what the hooks say, in order, between the stock calls; routes elsewhere than asked."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def on_route(self, layer: int, picks: Any, weights: Any, x: torch.Tensor) -> tuple[Any, Any]:
        self.said.append(("route", layer, picks, weights, x))
        return f"other {picks}", f"other {weights}"

    def on_combine(self, layer: int, final: Any) -> None:
        self.said.append(("combine", layer, final))

    def on_pass(self, rows: int, *, cache_only: bool) -> None:
        self.said.append(("pass", rows, cache_only))


@pytest.fixture
def tiers() -> Any:
    return Tiers()


def test_stock_computes_with_what_the_tiers_answer_to_the_router(tiers: Any):
    y = torch.zeros(1, 4)
    asked: list[Any] = []

    def route(*arguments: Any) -> tuple[str, str]:
        asked.append(arguments)
        return "picks", "weights"

    hook = LayerHook(route, lambda *_: None, 7, tiers)
    assert hook.routing_fn(1, "cfg", y, {}) == ("other picks", "other weights")
    assert asked == [(1, "cfg", y, {})]
    assert tiers.said == [("route", 7, "picks", "weights", y)]


def test_a_pass_over_all_experts_is_no_choice_of_the_router(tiers: Any):
    hook = LayerHook(lambda *_: ("picks", "weights"), lambda *_: None, 7, tiers)
    chosen = hook.routing_fn(1, "cfg", torch.zeros(1, 4), {"activate_all_experts": True})
    assert chosen == ("picks", "weights")
    assert tiers.said == []


def test_the_tiers_add_to_what_the_stock_combine_returned(tiers: Any):
    hook = LayerHook(lambda *_: None, lambda *given: ("combined", *given), 3, tiers)
    final: Any = "final"
    combined = hook.cpu_split_combine(final, "partial", "pending", "shape")
    assert combined == ("combined", "final", "partial", "pending", "shape")
    assert tiers.said == [("combine", 3, combined)]


@pytest.mark.parametrize(
    ("params", "cache_only"), [({}, False), ({"prefill": True}, True), ({"prefill": None}, True)]
)
def test_a_pass_is_announced_before_it_runs(tiers: Any, params: dict[str, Any], cache_only: bool):
    x = torch.zeros(2, 5, 4)

    def forward(*given: Any) -> Any:
        assert tiers.said == [("pass", 10, cache_only)]
        return given

    assert PassHook(forward, tiers).forward(x, params, torch.half) == (x, params, torch.half)


@pytest.mark.parametrize(
    ("value", "flagged"), [(0.5, False), (float("inf"), False), (float("nan"), True)]
)
def test_only_a_nan_raises_the_flag(value: float, flagged: bool):
    flag = torch.zeros(1, dtype=torch.bool)
    x = torch.zeros(2, 3)
    x[1, 2] = value
    watch = ResidualWatch(lambda *given, **named: (given, named), flag)
    assert watch.forward(x, 1, dtype=2) == ((x, 1), {"dtype": 2})
    assert bool(flag) is flagged
    watch.forward(torch.zeros(2, 3))
    assert bool(flag) is flagged, "a later pass without one does not hide it"
