"""bench/expert_noise.py: no noise changes nothing, more noise changes more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_answers_move_with_the_noise(tmp_path: Path) -> None:
    panel = json.loads((ROOT / "reference" / "tiny-ref-panel.json").read_text(encoding="utf-8"))
    few = tmp_path / "panel.json"
    few.write_text(json.dumps(panel[:2]), encoding="utf-8")
    subprocess.run(
        [sys.executable, "bench/expert_noise.py", "--panel", few, "--noise", "0", "0.5", "--out", tmp_path],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (path,) = tmp_path.glob("*-expert-noise.json")
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["positions"] == sum(len(row["tokens"]) for row in panel[:2])
    nothing = {"kl_mean": 0, "kl_p99": 0, "kl_max": 0, "top1_agree": 1}
    assert found["noise"]["0"] == nothing | {"answers": nothing}
    assert found["noise"]["0.5"]["kl_mean"] > 1e-3
