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


async def record(
    engine: Any, recorder: RoutingRecorder, prompts: Iterator[list[int]], streams: int, tokens: int
) -> None:
    """Keep `streams` requests going until the recorder is full. Raises EngineError."""
    number = itertools.count()

    async def one_after_another() -> None:
        while not recorder.full:
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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", type=Path, required=True, help="plan of the engine to load")
    parser.add_argument("--out", type=Path, required=True, help="trace file, .npy")
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=256, help="per request (256)")
    parser.add_argument("--prompts", type=Path, help="JSON list of texts")
    args = parser.parse_args()
    from glm53_server.engine import exl3
    from glm53_server.tokenizer import Tokenizer
    from glm53ctl.errors import Glm53Error
    from glm53ctl.plan import plan_from_json

    text = args.plan.read_text(encoding="utf-8")
    body = json.loads(text)
    try:
        plan = plan_from_json(json.dumps(body.get("plan", body)), source=str(args.plan))
        engine = exl3.load(plan, lambda *_: None)
    except Glm53Error as err:
        print(f"error: {err}", file=sys.stderr)
        return err.exit_code
    texts = json.loads(args.prompts.read_text(encoding="utf-8")) if args.prompts else list(PROMPTS)
    tokenizer = Tokenizer(Path(engine._session.loaded.config.directory) / "tokenizer.json")
    ids = [list(tokenizer.encode_raw(TEMPLATE.format(text))) for text in texts]
    recorder = attach(engine, args.steps, args.streams)

    async def play() -> None:
        await record(engine, recorder, itertools.cycle(ids), args.streams, args.tokens)
        await engine.close()

    asyncio.run(play())
    found = recorder.recorded()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.save(args.out, found.numpy())
    print(f"{args.out}: {len(found)} steps of {args.streams} streams")
    return 0


if __name__ == "__main__":
    sys.exit(main())
