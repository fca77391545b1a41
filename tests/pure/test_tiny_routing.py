"""Routing of the tiny model in training: its figures, and the biases that skew it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import train_tiny  # noqa: E402
from tiny import routing, shape  # noqa: E402


def test_routing_figures_of_known_picks():
    picks = torch.tensor([[[0, 1], [0, 1], [0, 2], [3, 3]]])
    used = torch.tensor([[True, True, True, False]])
    layer = routing.measure(picks, used, 4)
    assert layer.repeat_rate == pytest.approx(0.75)
    assert layer.top_quarter_share == pytest.approx(0.5)
    assert layer.unused == 1
    flat = routing.measure(torch.arange(4).view(1, 4, 1), torch.ones(1, 4, dtype=torch.bool), 4)
    assert flat.effective == pytest.approx(4.0)
    assert flat.repeat_rate == 0


def test_the_biases_spread_with_depth():
    model = train_tiny.build(shape.SMOKE, 1)
    router = routing.Router(model)
    router.skew(0.3, 1)
    gates = [m for n, m in model.named_modules() if n.endswith("mlp.gate")]
    spreads = [float(gate.e_score_correction_bias.std()) for gate in gates]
    assert len(router) == 3
    assert spreads[0] < spreads[-1]
    assert all(abs(float(gate.e_score_correction_bias.mean())) < 1e-6 for gate in gates)
