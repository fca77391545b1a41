"""How much does a small error of the experts change the answers? On the CPU engine's float32 model.

usage: expert_noise.py [--checkpoint DIR] [--panel FILE] [--noise 1e-3 4e-3 ...] [--out DIR]

Every MoE layer's expert sum gets Gaussian noise of a given share of its own root mean square; KL against
the answers without it, over the whole vocabulary, at every token of a panel, and at those of its answers
alone, which bench/score_ref_panel.py scores. Where two experts are
nearly tied, such an error makes the router pick the other one: a checkpoint is as sensitive as its
routers. It tells a larger KL of fast mode that is a checkpoint's from one that is a bug's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / name) for name in (".", "server", "kernels")]

import torch  # noqa: E402

from glm53_kernels import CpuKernels  # noqa: E402
from glm53_server.engine.cpu_model import CpuModel, load_model  # noqa: E402
from glm53ctl.bench.provenance import commit  # noqa: E402
from glm53ctl.checkpoint import open_checkpoint  # noqa: E402


class Noisy:
    """A layer's experts with an error; `share` 0 changes nothing."""

    def __init__(self, experts: Any, generator: torch.Generator) -> None:
        self._forward, self._generator = experts.forward, generator
        self.share = 0.0
        experts.forward = self

    def __call__(self, *given: Any, **options: Any) -> torch.Tensor:
        exact = self._forward(*given, **options)
        if not self.share:
            return exact
        size = exact.square().mean(-1, keepdim=True).sqrt() * self.share
        return exact + torch.randn(exact.shape, generator=self._generator) * size


def answers(model: CpuModel, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
    """Log-probabilities float64 [positions, vocab] of every token of every sequence."""
    rows = [model.logits(ids, model.new_cache(), every=True) for ids in sequences]
    return torch.cat(rows).double().log_softmax(-1)


def compared(exact: torch.Tensor, found: torch.Tensor) -> dict[str, Any]:
    kl = (exact.exp() * (exact - found)).sum(-1)
    same = exact.argmax(-1) == found.argmax(-1)
    return {
        "kl_mean": float(kl.mean()), "kl_p99": float(kl.quantile(0.99)), "kl_max": float(kl.max()),
        "top1_agree": float(same.double().mean()),
    }  # fmt: skip


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "reference" / "tiny")
    parser.add_argument("--panel", type=Path, default=ROOT / "reference" / "tiny-ref-panel.json")
    parser.add_argument(
        "--noise", type=float, nargs="+", default=[5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2]
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--name", default="expert-noise")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kernels = CpuKernels(threads=args.threads, precision="exact")
    model = load_model(open_checkpoint(args.checkpoint), kernels, lambda *_: None)
    generator = torch.Generator().manual_seed(1)
    layers = [Noisy(experts, generator) for experts in model.routed_experts()]
    panel = json.loads(args.panel.read_text(encoding="utf-8"))
    sequences = [row["tokens"] for row in panel]
    exact = answers(model, sequences)
    answered = torch.cat([
        torch.arange(len(row["tokens"])) >= row["prompt_len"] - 1 for row in panel
    ])  # fmt: skip
    found: dict[str, dict[str, Any]] = {}
    for share in args.noise:
        for layer in layers:
            layer.share = share
        noisy = answers(model, sequences)
        found[f"{share:g}"] = compared(exact, noisy)
        found[f"{share:g}"]["answers"] = compared(exact[answered], noisy[answered])
        print(f"{share:g}", found[f"{share:g}"], flush=True)
    now = datetime.now(UTC)
    body = {
        "schema": "glm53ctl.bench.expert-noise/1", "date": f"{now:%Y-%m-%d}",
        "recorded": now.isoformat(timespec="seconds"), "commit": commit(),
        "command": "python3 bench/expert_noise.py", "positions": len(exact), "noise": found,
    }  # fmt: skip
    path = args.out / f"{now:%Y-%m-%d}-{args.name}.json"
    path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
