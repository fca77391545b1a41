"""decode_kl.py from its command line to its file, over a model that is a table and a real Session's interface."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from glm53_server.engine import exl3
from glm53_server.engine.exl3_session import Session
from glm53_server.engine.exl3_worker import Exl3Worker
from glm53ctl.paths import tiny_checkpoint
from glm53ctl.plan import (
    CpuPlan,
    CpuTierPlan,
    EngineName,
    GpuPlan,
    ListenPlan,
    Mode,
    ModelPlan,
    Plan,
)

ROOT = Path(__file__).resolve().parents[2]
TOKENS, VOCAB = 3, 64


class Lane:
    """A CPU tier that shifts every logit a little while it is on."""

    enabled = True
    stats = staticmethod(lambda: {"cpu_experts": 7})


def engine(lane: Lane, noise: float) -> Any:
    """An engine whose model differs by `lane` and, call by call, by `noise`."""
    table = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(0))
    calls = iter(range(10_000))

    def forward(ids: torch.Tensor, params: dict[str, Any]) -> torch.Tensor:
        assert params["recurrent_states"] == ["state"]
        row = table[ids[0, -1] % VOCAB] + noise * next(calls) * torch.arange(VOCAB)
        return (row + 0.05 * lane.enabled * torch.arange(VOCAB) / VOCAB)[None, None]

    session = mock.create_autospec(Session, instance=True)
    cache = SimpleNamespace(get_new_state=lambda: "state", release_state=lambda _: None)
    session.loaded = SimpleNamespace(
        model=SimpleNamespace(forward=forward),
        cache=cache,
        config=SimpleNamespace(directory=str(tiny_checkpoint())),
    )
    session.tiers = SimpleNamespace(cpu_lane=lane)
    worker = mock.create_autospec(Exl3Worker, instance=True)
    return SimpleNamespace(_worker=worker, _session=session)


@pytest.mark.parametrize(("noise", "code"), [(0.0, 0), (1e-6, 1)])
def test_the_whole_script(noise, code, tmp_path, monkeypatch, capsys):
    plan = Plan(
        Mode.FAST, EngineName.EXL3, ModelPlan(str(tiny_checkpoint()), "tiny", 4096), ListenPlan(),
        CpuPlan(1, (0,)), gpu=GpuPlan("x", "a GPU", 0, 0, 0), cpu_tier=CpuTierPlan(),
    )  # fmt: skip
    (tmp_path / "plan.json").write_text(plan.to_json())
    out = tmp_path / "found" / "kl.json"
    made = engine(Lane(), noise)
    monkeypatch.setattr(exl3, "load", lambda *_: made)
    monkeypatch.setattr(sys, "argv", ["decode_kl.py", "--plan", str(tmp_path / "plan.json"),
                                      "--kl-out", str(out), "--kl-tokens", str(TOKENS)])  # fmt: skip
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    script = importlib.import_module("decode_kl")

    assert script.main() == code

    found = json.loads(out.read_text())
    assert found["positions"] == TOKENS * len(script.PROMPTS)
    assert (found["control_off"]["kl_max"] == 0) is (code == 0)
    assert 0 < found["kl_mean"] < 1e-3
    assert found["cpu_tier"] == {"cpu_experts": 7}
    assert [one["tokens"] for one in found["per_prompt"]] == [TOKENS] * len(script.PROMPTS)
    assert json.loads(capsys.readouterr().out)["kl_mean"] == found["kl_mean"]
    made._worker.join.assert_called_once()  # the engine's thread has ended before we decode
    made._session.close.assert_called_once()
