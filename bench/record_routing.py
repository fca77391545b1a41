#!/usr/bin/env python3
"""Record which experts a model picks while it decodes: a trace for bench/replay_policies.py.

usage: record_routing.py --plan PLAN.json --out TRACE.npy [--steps 512] [--streams 1] [--prompts FILE]

Runs in the engine's process on the GPU, without a server; PLAN.json is what `glm53ctl plan --json` prints,
or the plan.json of an instance. Prompts (a JSON list of texts; otherwise those of decode_kl.py) are
decoded greedily, `streams` of them together, until so many steps are recorded. The file is int16 [steps,
layers, streams, picks].
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from decode_kl import PROMPTS, TEMPLATE

ROOT = Path(__file__).resolve().parent.parent
sys.path[1:1] = [str(ROOT), str(ROOT / "server"), str(ROOT / "kernels")]

from glm53_server.engine.base import Failed, GenRequest, Sampling  # noqa: E402
from glm53_server.moe.routing_trace import RoutingRecorder  # noqa: E402

IDLE_ROUNDS = 4


class Idle:
    """Whether requests come and go without a step that the recorder keeps."""

    def __init__(self, recorder: RoutingRecorder, limit: int) -> None:
        self._recorder, self._limit = recorder, limit
        self._requests, self._seen = 0, recorder.steps

    def too_long(self) -> bool:
        """Asked before each request."""
        if self._recorder.steps != self._seen:
            self._requests, self._seen = 0, self._recorder.steps
        self._requests += 1
        return self._requests > self._limit


async def record(
    engine: Any, recorder: RoutingRecorder, prompts: Iterator[list[int]], streams: int, tokens: int
) -> None:
    """Keep `streams` requests going until the recorder is full, or sees nothing for IDLE_ROUNDS requests
    of each stream. Raises EngineError."""
    number = itertools.count()
    idle = Idle(recorder, IDLE_ROUNDS * streams)

    async def one_after_another() -> None:
        while not recorder.full and not idle.too_long():
            name = f"record-{next(number)}"
            request = GenRequest(
                name, tuple(next(prompts)), tokens, sampling=Sampling(temperature=0)
            )
            async for event in engine.submit(request):
                if isinstance(event, Failed):
                    raise event.error
                if recorder.full:
                    break

    await asyncio.gather(*(one_after_another() for _ in range(streams)))


def attach(engine: Any, steps: int, streams: int) -> RoutingRecorder:
    """A recorder over the engine's expert tiers. Exits with a message when it has none."""
    tiers = engine._session.tiers
    if tiers is None:
        raise SystemExit("error: the stock engine has no expert tiers to record")
    tiers.recorder = RoutingRecorder(steps, tiers.residency.layout.layers, streams)
    return tiers.recorder


def refusal(args: argparse.Namespace, max_batch: int, texts: Any) -> str | None:
    """Why nothing, or not enough, could be recorded; None when it can."""
    counts = {"--steps": args.steps, "--streams": args.streams, "--tokens": args.tokens - 1}
    for name, count in counts.items():
        if count < 1:
            return f"{name} is too small: nothing would be decoded"
    if args.streams > max_batch:
        return f"--streams {args.streams}: this plan decodes at most {max_batch} together"
    if not isinstance(texts, list) or not all(isinstance(one, str) and one for one in texts):
        return f"{args.prompts} is not a JSON list of texts"
    if len(texts) < args.streams:
        return f"{len(texts)} prompts are too few for {args.streams} streams"
    return None


def read_prompts(path: Path | None) -> Any:
    """The document of a file, or the prompts of decode_kl.py. Raises SystemExit naming the file."""
    if path is None:
        return list(PROMPTS)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as err:
        raise SystemExit(f"error: cannot read {path}: {err}") from err


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", type=Path, required=True, help="plan of the engine to load")
    parser.add_argument("--out", type=Path, required=True, help="trace file, .npy")
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=256, help="per request (256)")
    parser.add_argument("--prompts", type=Path, help="JSON list of texts")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    from glm53_server.engine import exl3
    from glm53_server.tokenizer import Tokenizer
    from glm53ctl.errors import Glm53Error
    from glm53ctl.plan import plan_from_json

    texts = read_prompts(args.prompts)
    try:
        text = args.plan.read_text(encoding="utf-8")
        body = json.loads(text)
        inner = json.dumps(body["plan"]) if isinstance(body, dict) and "plan" in body else text
        plan = plan_from_json(inner, source=str(args.plan))
        if why := refusal(args, plan.limits.max_batch, texts):
            print(f"error: {why}", file=sys.stderr)
            return 2
        engine = exl3.load(plan, lambda *_: None)
    except (OSError, ValueError, RecursionError) as err:
        print(f"error: cannot read {args.plan}: {err}", file=sys.stderr)
        return 2
    except Glm53Error as err:
        print(f"error: {err}", file=sys.stderr)
        return err.exit_code
    tokenizer = Tokenizer(Path(engine._session.loaded.config.directory) / "tokenizer.json")
    ids = [list(tokenizer.encode_raw(TEMPLATE.format(text))) for text in texts]
    recorder = attach(engine, args.steps, args.streams)

    async def play() -> None:
        await record(engine, recorder, itertools.cycle(ids), args.streams, args.tokens)
        await engine.close()

    asyncio.run(play())
    if not recorder.steps:
        print(f"error: no decode step with {args.streams} streams was seen", file=sys.stderr)
        return 1
    found = recorder.recorded()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.save(args.out, found.numpy())
    print(f"{args.out}: {len(found)} steps of {args.streams} streams")
    return 0


if __name__ == "__main__":
    sys.exit(main())
