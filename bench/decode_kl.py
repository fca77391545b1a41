#!/usr/bin/env python3
"""What the CPU tier costs in quality: KL of decoding with the tier against decoding without it.

usage: decode_kl.py --plan PLAN.json --kl-out FILE [--kl-tokens 256]

Runs in the engine's process on the GPU, without a server; PLAN.json is what `glm53ctl plan --json`
prints for fast mode, or the plan.json of an instance. Six fixed prompts are decoded greedily with the
tier off; then the same tokens are decoded again with the tier off (the control, which must be 0) and
with the tier on. Panels and prefill cannot show this: the tier works in decode steps only.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

PROMPTS = (
    "Explain how a sailing boat can move against the wind.",
    "Write a Python function that parses one line of a CSV file with quotes.",
    "Tell a story about two friends who repair an old radio.",
    "Beschreibe in einem Absatz, wie ein Leuchtturm funktioniert.",
    "List ten facts about the planet Saturn.",
    "A train leaves at 9:40 and travels 210 km at 84 km/h. When does it arrive? Show your work.",
)
TEMPLATE = "[gMASK]<sop><|user|>{}<|assistant|><think></think>"

Position = tuple[float, bool, float]  # (KL, same top-1, margin of the reference's top-1 in nats)


class Decoder:
    """Feeds a loaded model one token per forward pass, as decoding does. One stream, no generator."""

    def __init__(self, loaded: Any, tokens: int) -> None:
        self._loaded = loaded
        self._tokens = tokens

    @torch.inference_mode()
    def free(self, prompt: list[int]) -> tuple[list[int], torch.Tensor]:
        """Greedy continuation: (ids, log-probabilities [tokens, vocab] float32 on the host)."""
        return self._run(prompt, None)

    @torch.inference_mode()
    def forced(self, prompt: list[int], ids: list[int]) -> torch.Tensor:
        """Log-probabilities of every step when these ids are fed, whatever the model prefers."""
        return self._run(prompt, ids)[1]

    def _run(self, prompt: list[int], forced: list[int] | None) -> tuple[list[int], torch.Tensor]:
        states = [self._loaded.cache.get_new_state()]
        span = -(-(len(prompt) + self._tokens + 1) // 256) * 256
        ids: list[int] = []
        rows: list[torch.Tensor] = []
        part, past = prompt, 0
        try:
            for step in range(self._tokens):
                logits = self._loaded.model.forward(
                    torch.tensor([part], dtype=torch.long),
                    {"attn_mode": "flash_attn", "cache": self._loaded.cache, "batch_shape": (1, span),
                     "past_len": past, "recurrent_states": states},
                )  # fmt: skip
                row = torch.log_softmax(logits[0, -1].float(), dim=-1)
                rows.append(row.cpu())
                ids.append(int(row.argmax()) if forced is None else forced[step])
                past += len(part)
                part = ids[-1:]
        finally:
            for state in states:
                self._loaded.cache.release_state(state)
        return ids, torch.stack(rows)


def compare(reference: torch.Tensor, other: torch.Tensor) -> list[Position]:
    """Per position of two [tokens, vocab] tables of log-probabilities: KL, agreement, margin."""
    kl = (reference.exp() * (reference - other)).nansum(dim=-1)
    best, chosen = reference.argmax(dim=-1), other.argmax(dim=-1)
    margin = reference.gather(1, best[:, None]) - reference.gather(1, chosen[:, None])
    return list(zip(kl.tolist(), (best == chosen).tolist(), margin.flatten().tolist(), strict=True))


def totals(positions: list[Position]) -> dict[str, Any]:
    """{positions, kl_mean, kl_p99, kl_max, top1_agree}."""
    values = sorted(kl for kl, _, _ in positions)
    return {
        "positions": len(values),
        "kl_mean": sum(values) / len(values),
        "kl_p99": values[min(len(values) - 1, int(0.99 * len(values)))],
        "kl_max": values[-1],
        "top1_agree": sum(same for _, same, _ in positions) / len(positions),
    }


def first_divergence(positions: list[Position]) -> int | None:
    """The first position where both prefer different tokens."""
    return next((i for i, (_, same, _) in enumerate(positions) if not same), None)


def prompt_report(prompt: str, positions: list[Position], **seconds: float) -> dict[str, Any]:
    found = totals(positions)
    return {
        "prompt": prompt,
        "tokens": found["positions"],
        "kl_mean": found["kl_mean"],
        "kl_max": found["kl_max"],
        "top1_agree": found["top1_agree"],
        "greedy_first_divergence": first_divergence(positions),
        "disagree_margins_nats": [round(m, 4) for _, same, m in positions if not same],
        "restarts": 0,  # the tokens are given: nothing is fed again after a divergence
        **seconds,
    }


def measure(session: Any, tokens: int, encode: Any) -> dict[str, Any]:
    """The whole comparison over a loaded session whose engine thread has ended."""
    lane = session.tiers.cpu_lane if session.tiers is not None else None
    decoder = Decoder(session.loaded, tokens)
    control: list[Position] = []
    tiered: list[Position] = []
    reports: list[dict[str, Any]] = []
    for prompt in PROMPTS:
        ids = encode(TEMPLATE.format(prompt))
        began = time.perf_counter()
        _switch(lane, on=False)
        said, reference = decoder.free(ids)
        sec_exact = round(time.perf_counter() - began, 2)
        control += compare(reference, decoder.forced(ids, said))
        if lane is None:
            continue
        _switch(lane, on=True)
        began = time.perf_counter()
        found = compare(reference, decoder.forced(ids, said))
        sec_tier = round(time.perf_counter() - began, 2)
        tiered += found
        reports.append(prompt_report(prompt, found, sec_exact=sec_exact, sec_tier=sec_tier))
        print(f"{reports[-1]['kl_mean']:.6f} nats  {prompt}", file=sys.stderr, flush=True)
    result: dict[str, Any] = {"control_off": totals(control)}
    if lane is not None:
        result |= totals(tiered)
        result["first_divergence"] = [one["greedy_first_divergence"] for one in reports]
        result["cpu_tier"] = lane.stats()
        result["per_prompt"] = reports
    return result


def _switch(lane: Any, *, on: bool) -> None:
    if lane is not None:
        lane.enabled = on


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", type=Path, required=True, help="plan of the engine to load")
    parser.add_argument("--kl-out", type=Path, required=True, help="result file")
    parser.add_argument("--kl-tokens", type=int, default=256, help="tokens per prompt (256)")
    args = parser.parse_args()
    root = Path(__file__).resolve().parent.parent
    sys.path[1:1] = [str(root), str(root / "server"), str(root / "kernels")]
    from glm53_server.engine import exl3
    from glm53_server.tokenizer import Tokenizer
    from glm53ctl.errors import Glm53Error
    from glm53ctl.plan import plan_from_json

    text = args.plan.read_text(encoding="utf-8")
    body = json.loads(text)
    if "plan" in body:  # the document of `glm53ctl plan --json`
        text = json.dumps(body["plan"])
    try:
        plan = plan_from_json(text, source=str(args.plan))
        engine = exl3.load(plan, lambda *_: None)
    except Glm53Error as err:
        print(f"error: {err}", file=sys.stderr)
        return err.exit_code
    worker, session = engine._worker, engine._session
    worker.stop(lambda: None)
    worker.join()  # from here on this thread is the engine's only one
    tokenizer = Tokenizer(Path(session.loaded.config.directory) / "tokenizer.json")
    result = measure(session, args.kl_tokens, lambda text: list(tokenizer.encode_raw(text)))
    session.close()
    args.kl_out.parent.mkdir(parents=True, exist_ok=True)
    args.kl_out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    shown = {key: result[key] for key in ("kl_mean", "kl_p99", "top1_agree") if key in result}
    print(json.dumps({"control_kl": result["control_off"]["kl_mean"], **shown}))
    if result["control_off"]["kl_max"] > 0:
        print("the control differs from itself: decoding is not deterministic", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
