#!/usr/bin/env python3
"""Is text delivered while it is generated, or in bursts? Chat first, then /generate.

usage: stream_rate.py --url URL [--model NAME] [--seconds 25] [--out FILE]

Per endpoint one line of JSON: {endpoint, events, chars, span_s, half_share, tail_share, pass}.
half_share is the share of the text that arrived in the first half of the span, tail_share that of its
last second. PASS: half_share >= 0.40 and tail_share <= 0.10 (for spans below 20 s: twice the share
that an even stream has in one second). The span starts when the first text could have come: as long
after the request as a one-token answer takes. A stream that fails is repeated twice: a server that
delivers in bursts does so every time, a disturbed machine does not. Exit status 0 for PASS, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import pairwise
from typing import Any

from wire import Server, ServerError, add_server_flags, write_json

PROMPT = "Write a long story about a lighthouse keeper who finds a map. Do not stop early."
HALF_BAR, TAIL_BAR, TAIL_S = 0.40, 0.10, 1.0
PROBE_TOKENS, LEAST_TOKENS, MOST_TOKENS = 17, 48, 4096
BINS = 20
ATTEMPTS = 3

Arrivals = list[tuple[float, int]]  # (second, characters)


def judge(arrivals: Arrivals, start_s: float) -> dict[str, Any]:
    """The verdict on one stream; seconds on one clock, `start_s` when text could first have come."""
    chars = sum(count for _, count in arrivals)
    if not arrivals or not chars:
        return {"events": 0, "chars": 0, "span_s": 0.0, "half_share": 0.0, "tail_share": 1.0,
                "tail_bar": TAIL_BAR, "pass": False}  # fmt: skip
    begin = min(start_s, arrivals[0][0])
    end = arrivals[-1][0]
    span = max(end - begin, 1e-9)
    half = sum(count for at, count in arrivals if at <= begin + span / 2) / chars
    window = min(TAIL_S, span / 2)
    tail = sum(count for at, count in arrivals if at > end - window) / chars
    bar = max(TAIL_BAR, 2 * window / span)
    return {
        "events": len(arrivals),
        "chars": chars,
        "span_s": round(span, 3),
        "half_share": round(half, 4),
        "tail_share": round(tail, 4),
        "tail_bar": round(bar, 4),
        "pass": half >= HALF_BAR and tail <= bar,
    }


def bins(arrivals: Arrivals, start_s: float) -> dict[str, Any]:
    """Characters per equal slice of the span, and the gaps between events, for plots."""
    if not arrivals:
        return {"bin_s": 0.0, "bin_chars": [], "gap_ms": []}
    begin = min(start_s, arrivals[0][0])
    width = max(arrivals[-1][0] - begin, 1e-9) / BINS
    counts = [0] * BINS
    for at, count in arrivals:
        counts[min(BINS - 1, int((at - begin) / width))] += count
    gaps = sorted(round((b - a) * 1e3, 2) for (a, _), (b, _) in pairwise(arrivals))
    return {"bin_s": round(width, 4), "bin_chars": counts, "gap_ms": gaps}


def chat_body(model: str, tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "chat_template_kwargs": {"enable_thinking": False},
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
    }


def generate_body(_model: str, tokens: int) -> dict[str, Any]:
    return {
        "text": PROMPT,
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
    }


def chat_chars(event: dict[str, Any], _before: int) -> int:
    delta = event["choices"][0]["delta"] if event.get("choices") else {}
    return len(delta.get("content") or "") + len(delta.get("reasoning_content") or "")


def generate_chars(event: dict[str, Any], before: int) -> int:
    return len(event.get("text", "")) - before  # each event repeats the text so far


ENDPOINTS = {
    "/v1/chat/completions": (chat_body, chat_chars),
    "/generate": (generate_body, generate_chars),
}


def receive(server: Server, endpoint: str, model: str, tokens: int) -> tuple[Arrivals, float]:
    """Stream one answer of `tokens` tokens: (arrivals, seconds when it was asked for)."""
    body, characters = ENDPOINTS[endpoint]
    arrivals: Arrivals = []
    total = 0
    asked = time.perf_counter()
    for at, event in server.events(endpoint, body(model, tokens)):
        count = characters(event, total)
        if count > 0:
            total += count
            arrivals.append((at, count))
    return arrivals, asked


def timed(server: Server, endpoint: str, model: str, tokens: int) -> float:
    began = time.perf_counter()
    for _ in server.events(endpoint, ENDPOINTS[endpoint][0](model, tokens)):
        pass
    return time.perf_counter() - began


def say(line: str) -> None:
    """Progress goes to stderr; stdout holds results only."""
    print(line, file=sys.stderr, flush=True)


def measure(server: Server, endpoint: str, model: str, seconds: float) -> dict[str, Any]:
    """Probe with one token and with a few, then stream for about `seconds` and judge."""
    say(f"{endpoint}: short answers first")
    timed(server, endpoint, model, 1)  # the first request of a process is no measure
    first_s = timed(server, endpoint, model, 1)
    probe_s = timed(server, endpoint, model, PROBE_TOKENS)
    per_token_s = max((probe_s - first_s) / (PROBE_TOKENS - 1), 1e-4)
    tokens = int(min(MOST_TOKENS, max(LEAST_TOKENS, seconds / per_token_s)))
    say(f"{endpoint}: {tokens} tokens, about {tokens * per_token_s:.0f} s")
    result: dict[str, Any] = {}
    for attempt in range(1, ATTEMPTS + 1):
        arrivals, asked = receive(server, endpoint, model, tokens)
        start = asked + first_s
        result = {"endpoint": endpoint, **judge(arrivals, start), "tokens": tokens,
                  "attempts": attempt, **bins(arrivals, start)}  # fmt: skip
        if result["pass"]:
            break
        if attempt < ATTEMPTS:
            say(f"{endpoint}: not even, once more ({attempt + 1} of {ATTEMPTS})")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_server_flags(parser)
    parser.add_argument("--model", help="model name; the first one served by default")
    parser.add_argument("--seconds", type=float, default=25.0, help="length of a stream (25)")
    parser.add_argument("--out", help="write all of it, with the plots' data, to this file")
    args = parser.parse_args()
    server = Server(args.url, args.api_key_file)
    results = []
    try:
        model = args.model or server.get("/v1/models")["data"][0]["id"]
        for endpoint in ENDPOINTS:
            result = measure(server, endpoint, model, args.seconds)
            results.append(result)
            shown = {k: v for k, v in result.items() if k not in {"bin_s", "bin_chars", "gap_ms"}}
            print(json.dumps(shown), flush=True)
    except ServerError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    passed = all(result["pass"] for result in results)
    if args.out:
        write_json(args.out, {"endpoints": results, "pass": passed})
    print("PASS" if passed else "FAIL")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
