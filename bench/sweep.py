#!/usr/bin/env python3
"""Prefill and decode speed of a running server, as medians with their spread.

usage: sweep.py --url URL --card NAME --config NAME --out FILE [--prefill 8192 16384 ...] [--conc 1 2 3 4]
                [--high [TOKENS]] [--reps 3] [--dec-reps 2] [--best FILE [--update-best]] [--tol .05]
                [--no-early-exit] [--template {qwen,glm}]

Prefill: fresh random ids, prompt tokens / time to first token. Decode: greedy, short questions with
a nonce, to the natural end (at most --max-tokens), so nothing comes from a prefix cache. A stream's
rate counts the tokens after its first; the aggregate adds these up over the time from the first
first-token to the last end. With --best, prefill, C1 and C4 may not fall more than --tol below the
best known figures: the first that does ends the sweep with exit status 3.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import threading
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any

from wire import Server, ServerError, add_server_flags, write_json

QUESTIONS = (
    "Explain how a sailing boat can move against the wind.",
    "Describe the life of a medieval stone mason in one long paragraph.",
    "Write a Python function that parses a CSV line, then explain it step by step.",
    "What are the main causes of inflation, and how do central banks respond?",
    "Tell a story about two friends who repair an old radio.",
    "Compare the circulatory systems of fish, birds and mammals.",
    "Plan a week of simple vegetarian dinners and justify each choice.",
    "How does a compiler turn a loop into machine code?",
)
TEMPLATES = {
    "glm": "[gMASK]<sop><|user|>{}<|assistant|><think></think>",
    "qwen": "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
}
FIRST_ID, END_ID = 1000, 150_000
HIGH_TOKENS = 32768
GATED = {"decode_C1", "decode_C4"}
PROTOCOL = "prefill n/TTFT of fresh random ids; decode greedy, nonce'd prompts, natural end"
SERVER_ARGS = (
    "engine", "model_dir", "context_length", "max_running_requests", "max_total_num_tokens",
    "chunked_prefill_size", "kv_cache_dtype",
)  # fmt: skip


class EarlyExit(Exception):
    """A gate failed; the message is its name."""


def spread(values: list[float], digits: int = 3) -> dict[str, Any]:
    """{median, min, max, n, all} of some measurements."""
    rounded = [round(value, digits) for value in values]
    return {
        "median": round(median(values), digits),
        "min": min(rounded),
        "max": max(rounded),
        "n": len(values),
        "all": rounded,
    }


def gate(value: float, best: float | None, tolerance: float) -> dict[str, Any]:
    """Whether a figure holds against the best known one; without one it passes."""
    passed = best is None or value >= best * (1 - tolerance)
    return {"value": value, "best_known": best, "pass": passed}


def round_figures(streams: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of streams that ran together: each has first_s, end_s, asked_s, tokens and finish."""
    window = max(s["end_s"] for s in streams) - min(s["first_s"] for s in streams)
    tokens = sum(s["tokens"] for s in streams)
    rates = [(s["tokens"] - 1) / max(s["end_s"] - s["first_s"], 1e-9) for s in streams]
    return {
        "aggregate": round((tokens - len(streams)) / max(window, 1e-9), 3),
        "per_stream_mean": round(fmean(rates), 3),
        "per_stream_min": round(min(rates), 3),
        "tokens": tokens,
        "finish": [s["finish"] for s in streams],
        "ttft_max": round(max(s["first_s"] - s["asked_s"] for s in streams), 4),
    }


class Power:
    """Mean power of a local GPU while in a `with` block; None where nvidia-smi does not answer."""

    def __init__(self, gpu: str | None) -> None:
        self._gpu = gpu
        self._samples: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Power:
        if self._gpu is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    @property
    def mean_w(self) -> float | None:
        return round(fmean(self._samples), 1) if self._samples else None

    def _run(self) -> None:
        line = ["nvidia-smi", "-i", str(self._gpu), "--query-gpu=power.draw",
                "--format=csv,noheader,nounits"]  # fmt: skip
        while not self._ended.is_set():
            try:
                done = subprocess.run(line, capture_output=True, text=True, timeout=5, check=True)
                self._samples.append(float(done.stdout.split()[0]))
            except (OSError, subprocess.SubprocessError, ValueError, IndexError):
                return
            self._ended.wait(0.5)


class Sweep:
    """One sweep: its settings, the server and the document that grows with each figure."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._server = Server(args.url, args.api_key_file)
        self._info = self._server.get("/server_info")
        self._random = random.Random(args.seed)
        self._nonce = uuid.uuid4().hex[:8]
        self._asked = 0
        found = self._info.get("server_args", {})
        self._context = int(self._info.get("context_length") or found.get("context_length") or 0)
        self._best = self._read_best()
        self.document: dict[str, Any] = {
            "card": args.card,
            "config": args.config,
            "started": _now(),
            "finished": None,
            "ctx_len": self._context,
            "protocol": PROTOCOL,
            "template": args.template,
            "tol": args.tol,
            "best_known_before": dict(self._best),
            "server_args": {name: found.get(name) for name in SERVER_ARGS},
            "prefill": {},
            "ttft_s": {},
            "decode": {},
            "gates": {},
            "prompt_sha256": hashlib.sha256("\n".join(QUESTIONS).encode()).hexdigest(),
            "nonce_prefix": self._nonce,
            "status": "RUNNING",
        }

    def run(self) -> str:
        """Measure everything; returns the final status."""
        args = self._args
        try:
            self._warm_up()
            for tokens in args.prefill:
                self._prefill(tokens)
            for streams in args.conc:
                self._decode(f"C{streams}", streams, args.dec_reps, lambda: self._question())
            if args.high:
                self._high(args.high)
            status = "DONE"
        except EarlyExit as gate_failed:
            status = f"EARLY_EXIT {gate_failed}"
        self.document |= {"status": status, "finished": _now()}
        self._save()
        if args.update_best:
            self._write_best()
        return status

    def _warm_up(self) -> None:
        self._stream({"text": self._question()}, 8)

    def _prefill(self, tokens: int) -> None:
        if self._context and tokens + 1 > self._context:
            reason = f"longer than the context of {self._context}"
            self.document["prefill"][str(tokens)] = {"skipped": reason}
            return
        waits = []
        for _ in range(self._args.reps):
            stream = self._stream({"input_ids": self._random_ids(tokens)}, 1)
            waits.append(stream["first_s"] - stream["asked_s"])
        self.document["ttft_s"][str(tokens)] = spread(waits, 4)
        self.document["prefill"][str(tokens)] = spread([tokens / wait for wait in waits])
        self._tell(f"prefill {tokens}", self.document["prefill"][str(tokens)])
        self._gate(f"prefill_{tokens}", self.document["prefill"][str(tokens)]["median"])

    def _decode(self, name: str, streams: int, reps: int, prompt: Any) -> None:
        with Power(self._args.gpu) as power:
            rounds = [
                round_figures(self._together([prompt() for _ in range(streams)]))
                for _ in range(reps)
            ]
        figures: dict[str, Any] = {
            "aggregate": spread([one["aggregate"] for one in rounds]),
            "per_stream_mean": spread([one["per_stream_mean"] for one in rounds]),
            "rounds": rounds,
            "gpu_power_w_mean": power.mean_w,
        }
        self.document["decode"][name] = figures
        self._tell(name, figures["aggregate"])
        if f"decode_{name}" in GATED:
            self._gate(f"decode_{name}", figures["aggregate"]["median"])

    def _high(self, tokens: int) -> None:
        name = f"C1@{tokens // 1024}k" if tokens >= 1024 else f"C1@{tokens}"
        if self._context and tokens + self._args.max_tokens > self._context:
            reason = f"prompt and answer are longer than the context of {self._context}"
            self.document["decode"][name] = {"skipped": reason}
            return
        self._decode(name, 1, 1, lambda: self._long_prompt(tokens))

    def _together(self, prompts: list[str]) -> list[dict[str, Any]]:
        """Stream all prompts at once, one thread each. Raises the first failure."""
        streams: list[dict[str, Any]] = []
        failures: list[ServerError] = []

        def one(prompt: str) -> None:
            try:
                streams.append(self._stream({"text": prompt}, self._args.max_tokens))
            except ServerError as err:
                failures.append(err)

        threads = [threading.Thread(target=one, args=(prompt,)) for prompt in prompts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return streams

    def _stream(self, prompt: dict[str, Any], tokens: int) -> dict[str, Any]:
        body = {**prompt, "sampling_params": {"temperature": 0, "max_new_tokens": tokens}}
        asked = time.perf_counter()
        first = end = 0.0
        meta: dict[str, Any] = {}
        for at, event in self._server.events("/generate", body):
            first, end, meta = first or at, at, event["meta_info"]
        if not meta:
            raise ServerError("/generate: the stream ended without an event")
        reason = meta["finish_reason"] or {}
        return {"asked_s": asked, "first_s": first, "end_s": end,
                "tokens": meta["completion_tokens"], "finish": reason.get("type")}  # fmt: skip

    def _question(self) -> str:
        self._asked += 1
        text = QUESTIONS[self._asked % len(QUESTIONS)]
        return TEMPLATES[self._args.template].format(f"({self._nonce}-{self._asked}) {text}")

    def _long_prompt(self, tokens: int) -> str:
        """A question behind about `tokens` tokens of text."""
        self._asked += 1
        passage = f"({self._nonce}-{self._asked}) " + " ".join(QUESTIONS)
        count = len(self._server.post("/tokenize", {"prompt": passage})["tokens"])
        text = " ".join([passage] * max(1, tokens // count))
        return TEMPLATES[self._args.template].format(f"{text} {QUESTIONS[0]}")

    def _random_ids(self, count: int) -> list[int]:
        end = min(END_ID, int(self._info.get("vocab_size") or END_ID))
        return [self._random.randrange(FIRST_ID, end) for _ in range(count)]

    def _gate(self, name: str, value: float) -> None:
        result = gate(value, self._best.get(name), self._args.tol)
        self.document["gates"][name] = result
        self._save()
        if not result["pass"] and not self._args.no_early_exit:
            raise EarlyExit(name)

    def _tell(self, what: str, figures: dict[str, Any]) -> None:
        low, high = figures["min"], figures["max"]
        print(f"{what}: {figures['median']} tok/s ({low}-{high})", file=sys.stderr, flush=True)

    def _read_best(self) -> dict[str, float]:
        """Best known figures of this card, by gate."""
        if self._args.best is None or not self._args.best.exists():
            return {}
        return json.loads(self._args.best.read_text(encoding="utf-8")).get(self._args.card, {})

    def _write_best(self) -> None:
        path = self._args.best
        every = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        mine = every.setdefault(self._args.card, {})
        for name, result in self.document["gates"].items():
            mine[name] = max(mine.get(name, 0.0), result["value"])
        write_json(path, every)

    def _save(self) -> None:
        write_json(self._args.out, self.document)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_server_flags(parser)
    add = parser.add_argument
    add("--card", required=True, help="name of the machine or GPU, for the result")
    add("--config", required=True, help="name of the settings, for the result")
    add("--out", type=Path, required=True, help="result file, rewritten after every figure")
    add("--prefill", type=int, nargs="*", default=[8192, 16384, 32768, 65536], metavar="TOKENS")
    add("--conc", type=int, nargs="*", default=[1, 2, 3, 4], metavar="STREAMS")
    add("--high", type=int, nargs="?", const=HIGH_TOKENS, metavar="TOKENS",
        help="also decode one stream behind a prompt this long (32768)")  # fmt: skip
    add("--reps", type=int, default=3, help="prefill repetitions (3)")
    add("--dec-reps", type=int, default=2, help="decode rounds per concurrency (2)")
    add("--max-tokens", type=int, default=1024, help="longest answer (1024)")
    add("--tol", type=float, default=0.05, help="how far below the best a gate may fall (.05)")
    add("--no-early-exit", action="store_true", help="go on after a failed gate")
    add("--best", type=Path, metavar="FILE", help="best known figures, by card")
    add("--update-best", action="store_true", help="write better figures back to --best")
    add("--template", choices=sorted(TEMPLATES), default="glm")
    add("--gpu", default="0", help="GPU whose power is read (0)")
    add("--seed", type=int, default=None, help="seed of the random prompts; fresh ones by default")
    args = parser.parse_args()
    if args.update_best and args.best is None:
        parser.error("--update-best needs --best")
    return args


def main() -> int:
    args = _arguments()
    try:
        sweep = Sweep(args)
        status = sweep.run()
    except ServerError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    print(f"{status}: {args.out}")
    failed = [name for name, result in sweep.document["gates"].items() if not result["pass"]]
    if failed:
        print("below the best known: " + ", ".join(failed), file=sys.stderr)
    return 3 if status.startswith("EARLY_EXIT") else 0


if __name__ == "__main__":
    sys.exit(main())
