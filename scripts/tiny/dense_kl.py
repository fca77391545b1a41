"""What quantisation changed: the dense checkpoint against a panel that was recorded from the quantised one.

usage: PYTHONPATH=.:server:scripts python -m tiny.dense_kl DENSE PANEL

The panel is bench/record_panel.py's, from unmodified exllamav3. KL is over the panel's 20 likeliest
tokens, both sides renormalised, like bench/score_ref_panel.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def load(dense: Path) -> Any:
    """The dense checkpoint in float32 on the CPU."""
    from transformers import Glm5NextForConditionalGeneration

    return Glm5NextForConditionalGeneration.from_pretrained(dense, dtype=torch.float32).eval()


@torch.no_grad()
def rows(model: Any, panel: Sequence[Mapping[str, Any]]) -> Iterator[tuple[float, bool]]:
    """(KL in nats, same likeliest token) of every position of a panel."""
    for item in panel:
        hidden = model.model(input_ids=torch.tensor([item["tokens"]]), use_cache=False)
        logits = model.lm_head(hidden.last_hidden_state[0]).float().log_softmax(-1)
        first = item["prompt_len"] - 1
        for at, (ids, wanted) in enumerate(
            zip(item["top20_ids"], item["top20_lp"], strict=True), first
        ):
            ours, theirs = _renormalised(logits[at, ids]), _renormalised(torch.tensor(wanted))
            kl = float((theirs.exp() * (theirs - ours)).sum())
            yield kl, int(logits[at].argmax()) == ids[0]


def _renormalised(log_probabilities: Tensor) -> Tensor:
    return log_probabilities.double().log_softmax(-1)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dense", type=Path)
    parser.add_argument("panel", type=Path)
    args = parser.parse_args()
    panel = json.loads(args.panel.read_text(encoding="utf-8"))
    found = list(rows(load(args.dense), panel))
    same = sum(agreed for _, agreed in found) / len(found)
    mean = sum(kl for kl, _ in found) / len(found)
    print(
        f"{len(found)} positions: mean KL {mean:.4f}, largest {max(found)[0]:.4f}, same top token {same:.1%}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
