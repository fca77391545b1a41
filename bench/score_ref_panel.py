#!/usr/bin/env python3
"""Score a running server against a reference panel: teacher-forced KL and top-1 agreement.

usage: score_ref_panel.py --url URL --panel FILE [--out FILE] [--server sglang|vllm] [--model NAME] [--k 100]

A panel is a list of {prompt, prompt_len, tokens, top20_ids, top20_lp}: for every position from
prompt_len - 1 on, the reference's 20 likeliest next tokens and their log-probabilities. The server
reads the same tokens; KL is over the reference's 20 ids with both sides renormalised. An id outside
the server's first k is asked for by name (sglang) or gets the k-th log-probability (vllm; such
values are counted as "floored"). Exit status 1 when the server fails.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from wire import Server, ServerError, add_server_flags, write_json

ASK_LIMIT = 1000  # ids asked for by name in one request
WORST = 5
DIGITS = 10  # a panel keeps six decimals: what is below 1e-10 nats is its rounding

Row = dict[int, float]  # token id -> log-probability at one position


def kl(ids: list[int], reference: list[float], served: list[float]) -> float:
    """KL(reference || served) in nats over the ids, both renormalised; inf when served is not finite."""
    if not all(map(math.isfinite, served)):
        return math.inf
    own, other = log_sum(reference), log_sum(served)
    return sum(
        math.exp(p - own) * ((p - own) - (q - other))
        for _, p, q in zip(ids, reference, served, strict=True)
    )


def log_sum(values: list[float]) -> float:
    most = max(values)
    return most + math.log(sum(math.exp(value - most) for value in values))


def sglang_rows(server: Server, item: dict[str, Any], k: int) -> tuple[list[Row], int]:
    """Log-probabilities by position through /generate; (rows, 0)."""
    meta = _scored(server, item, top_logprobs_num=k)
    rows = [_row(entry) for entry in _entries(meta, "top_logprobs")]
    wanted = sorted(
        {
            token
            for row, ids in zip(rows, item["top20_ids"], strict=False)
            for token in ids
            if token not in row
        }
    )
    for start in range(0, len(wanted), ASK_LIMIT):
        part = wanted[start : start + ASK_LIMIT]
        asked = _scored(server, item, token_ids_logprob=part)
        for row, entry in zip(rows, _entries(asked, "token_ids_logprobs"), strict=True):
            row.update(_row(entry))
    return rows, 0


def _scored(server: Server, item: dict[str, Any], **what: Any) -> dict[str, Any]:
    body = {
        "input_ids": item["tokens"],
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": item["prompt_len"],
        **what,
    }
    if len(item["tokens"]) <= item["prompt_len"]:
        body.pop("logprob_start_len")  # nothing of the prompt is asked for
    return server.post("/generate", body)["meta_info"]


def _entries(meta: dict[str, Any], name: str) -> list[Any]:
    """Entry j predicted token start + j; the generated token's own distribution comes last."""
    return [*meta.get(f"input_{name}", []), *meta.get(f"output_{name}", [])]


def _row(entry: list[list[Any]] | None) -> Row:
    return {pair[1]: math.nan if pair[0] is None else float(pair[0]) for pair in entry or []}


def vllm_rows(server: Server, item: dict[str, Any], k: int, model: str) -> tuple[list[Row], int]:
    """Log-probabilities by position through /v1/completions with prompt_logprobs; (rows, floored)."""
    answer = server.post(
        "/v1/completions",
        {"model": model, "prompt": item["tokens"], "max_tokens": 1, "temperature": 0,
         "prompt_logprobs": k},
    )["choices"][0]  # fmt: skip
    rows: list[Row] = []
    floored = 0
    entries = answer["prompt_logprobs"][item["prompt_len"] :]
    for entry, ids in zip(entries, item["top20_ids"], strict=False):
        row = {int(token): float(found["logprob"]) for token, found in entry.items()}
        floor = min(row.values())
        missing = [token for token in ids if token not in row]
        floored += len(missing)
        rows.append(row | dict.fromkeys(missing, floor))
    return rows, floored


def compare(item: dict[str, Any], rows: list[Row]) -> list[tuple[float, bool, bool]]:
    """(KL, same top-1, top-1 is the panel's next token) per position that both sides have."""
    found: list[tuple[float, bool, bool]] = []
    panel = zip(item["top20_ids"], item["top20_lp"], rows, strict=False)
    for place, (ids, logprobs, row) in enumerate(panel, start=item["prompt_len"]):
        best = max(
            row,
            key=lambda token: -math.inf if math.isnan(row[token]) else row[token],
            default=-1,
        )
        following = item["tokens"][place] if place < len(item["tokens"]) else best
        value = kl(ids, logprobs, [row.get(token, math.nan) for token in ids])
        known = not math.isnan(row.get(best, math.nan))
        found.append((value, known and best == ids[0], known and best == following))
    return found


def summary(panel: list[dict[str, Any]], scored: list[list[tuple[float, bool, bool]]]) -> Any:
    """The output document: means over all positions, per prompt, and the worst positions."""
    places = [
        {"prompt": i, "position": panel[i]["prompt_len"] + j, "kl": _finite(value)}
        for i, rows in enumerate(scored)
        for j, (value, _, _) in enumerate(rows)
    ]
    worst = sorted(places, key=lambda x: math.inf if x["kl"] is None else x["kl"], reverse=True)
    every = [row for rows in scored for row in rows]
    return {
        "positions": len(every),
        "top1_agreement": _mean([top1 for _, top1, _ in every]),
        "mean_kl_top20": _mean([value for value, _, _ in every]),
        "per_prompt": [
            {
                "i": i,
                "positions": len(rows),
                "top1": _mean([top1 for _, top1, _ in rows]),
                "kl": _mean([value for value, _, _ in rows]),
                "greedy_match": _mean([match for _, _, match in rows]),
            }
            for i, rows in enumerate(scored)
        ],
        "worst": worst[:WORST],
    }


def _mean(values: list[Any]) -> float | None:
    """None stands for "not finite", which JSON cannot say."""
    return _finite(sum(values) / len(values)) if values else None


def _finite(value: float) -> float | None:
    return round(value, DIGITS) if math.isfinite(value) else None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_server_flags(parser)
    parser.add_argument("--panel", type=Path, required=True, help="the reference panel")
    parser.add_argument("--out", type=Path, help="write the scores to this file")
    parser.add_argument("--server", choices=("sglang", "vllm"), default="sglang")
    parser.add_argument("--model", help="model name (vllm); the first one served by default")
    parser.add_argument("--k", type=int, default=100, help="log-probabilities asked per position")
    args = parser.parse_args()
    server = Server(args.url, args.api_key_file)
    panel = json.loads(args.panel.read_text(encoding="utf-8"))
    scored: list[list[tuple[float, bool, bool]]] = []
    floored = 0
    try:
        model = args.model or server.get("/v1/models")["data"][0]["id"]
        for i, item in enumerate(panel):
            if args.server == "vllm":
                rows, low = vllm_rows(server, item, args.k, model)
            else:
                rows, low = sglang_rows(server, item, args.k)
            floored += low
            scored.append(compare(item, rows))
            print(
                f"prompt {i}: {_mean([value for value, _, _ in scored[-1]])} nats", file=sys.stderr
            )
    except ServerError as err:
        print(f"error: prompt {len(scored)}: {err}", file=sys.stderr)
        return 1
    result = summary(panel, scored)
    if args.server == "vllm":
        result |= {"adapter": "vllm", "floored": floored}
    if args.out:
        write_json(args.out, result)
    print(
        json.dumps({key: result[key] for key in ("positions", "top1_agreement", "mean_kl_top20")})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
