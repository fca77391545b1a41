"""bench/gpu_server.py measures what `glm53ctl up` would start: the settings' defaults are its own."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from glm53ctl.env import Settings

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def gpu_server(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("gpu_server")


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_the_plan_has_the_settings_defaults(gpu_server, tmp_path, mode):
    defaults = Settings()
    plan = gpu_server.make_plan(gpu_server.arguments(["--mode", mode]), tmp_path)
    assert plan.gpu.lookahead_experts == defaults.lookahead_experts
    assert plan.gpu.elastic_bytes == defaults.vram_elastic_bytes
    assert plan.gpu.stage_bytes == defaults.vram_stage_bytes
    assert plan.limits.chunk_tokens == 8192
    assert (plan.cpu_tier is not None) == (mode == "fast")


def test_a_flag_overrides_the_default(gpu_server, tmp_path):
    words = ["--mode", "fast", "--lookahead", "3", "--vram-gib", "16"]
    plan = gpu_server.make_plan(gpu_server.arguments(words), tmp_path)
    assert plan.gpu.lookahead_experts == 3
    assert plan.gpu.vram_limit_bytes == 16 << 30
