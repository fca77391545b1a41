#!/usr/bin/env python3
"""Record a reference panel from a running server: greedy answers and the 20 likeliest tokens at each step.

usage: record_panel.py --url URL --out FILE [--prompts FILE] [--tokens 96]

A panel is worth what its server is worth: record it from unmodified exllamav3 (`glm53ctl up --engine
stock`). FILE of prompts: one per line, or a JSON list of strings. The panel is read by
score_ref_panel.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from wire import Server, ServerError, add_server_flags

PROMPTS = (
    "The history of",
    "In mathematics, a group is",
    "The city lies on the river",
    "She opened the letter and",
    "During the second half of the game",
    "The species was first described",
    "def read_lines(path):",
    "Der Bau der Brücke begann",
)
KEPT = 20
DIGITS = 6


def record(server: Server, prompt: str, tokens: int) -> dict[str, Any]:
    """One panel entry: the answer is generated, then every position is scored in one teacher-forced pass."""
    ids = server.post("/tokenize", {"prompt": prompt})["tokens"]
    greedy = {"temperature": 0, "max_new_tokens": tokens}
    said = server.post("/generate", {"input_ids": ids, "sampling_params": greedy})
    every = [*ids, *said["output_ids"]]
    scored = server.post(
        "/generate",
        {"input_ids": every, "sampling_params": {"temperature": 0, "max_new_tokens": 1},
         "return_logprob": True, "logprob_start_len": len(ids), "top_logprobs_num": KEPT},
    )["meta_info"]["input_top_logprobs"]  # fmt: skip
    return {
        "prompt": prompt,
        "prompt_len": len(ids),
        "tokens": every,
        "completion": said["text"],
        "top20_ids": [[entry[1] for entry in row] for row in scored],
        "top20_lp": [[round(entry[0], DIGITS) for entry in row] for row in scored],
    }


def read_prompts(path: Path | None) -> list[str]:
    if path is None:
        return list(PROMPTS)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    return [line for line in text.splitlines() if line.strip()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_server_flags(parser)
    parser.add_argument("--out", type=Path, required=True, help="the panel file to write")
    parser.add_argument("--prompts", type=Path, help="prompts to use, one per line or a JSON list")
    parser.add_argument("--tokens", type=int, default=96, help="tokens per answer (96)")
    args = parser.parse_args()
    server = Server(args.url, args.api_key_file)
    panel: list[dict[str, Any]] = []
    try:
        engine = server.get("/server_info").get("engine")
        for prompt in read_prompts(args.prompts):
            panel.append(record(server, prompt, args.tokens))
            print(f"{len(panel[-1]['top20_ids'])} positions  {prompt}", file=sys.stderr, flush=True)
    except ServerError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(panel) + "\n", encoding="utf-8")
    rows = sum(len(item["top20_ids"]) for item in panel)
    print(f"{len(panel)} prompts, {rows} positions from engine {engine!r}: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
