"""A fast engine in a process of its own, for faults that stop or end a process; commands on stdin.

Every command is one JSON line {"do": NAME, ...}, every answer one line that starts with "@".
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in ("bench", "reference", "tests/native", "tests/gpu"):
    sys.path.insert(0, str(ROOT / folder))

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch

from gpu_engine_cases import PROMPTS, all_to_cpu, forget, plan, request  # noqa: E402

from glm53_server.engine import exl3  # noqa: E402
from glm53_server.engine.base import Failed, Tokens  # noqa: E402
from glm53_server.engine.exl3 import Exl3Engine  # noqa: E402
from glm53ctl.plan import CpuTierPlan, Mode  # noqa: E402


def say(**what: Any) -> None:
    sys.stdout.write("@" + json.dumps(what) + "\n")
    sys.stdout.flush()


async def answer(engine: Exl3Engine, tokens: int) -> None:
    """Decode the first prompt from an empty cache; says "started" at the first tokens, then all ids."""
    forget(engine)
    ids: list[int] = []
    async for event in engine.submit(request("child", PROMPTS[0], tokens)):
        if isinstance(event, Tokens):
            if not ids:
                say(started=True)
            ids += event.ids
        elif isinstance(event, Failed):
            say(failed=event.error.message)
            return
    say(ids=ids)


def main() -> None:
    engine = exl3.load(plan(Mode.FAST, CpuTierPlan(frozen_split=True), slots=8), lambda *_: None)
    lane = all_to_cpu(engine)
    say(ready=torch.cuda.get_device_name())
    for line in sys.stdin:
        command = json.loads(line)
        match command["do"]:
            case "answer":
                asyncio.run(answer(engine, command["tokens"]))
            case "lose_worker":
                lane.pool.lose_worker(in_job=True)
                say(done=True)
            case "stats":
                say(state=engine.state.value, **lane.stats())
            case _:
                break
    asyncio.run(engine.close())
    say(closed=True)


if __name__ == "__main__":
    main()
