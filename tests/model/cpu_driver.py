"""Runs the CPU engine on the tiny checkpoint from plain, synchronous tests."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from glm53_server.engine.base import Done, Engine, Event, Failed, GenRequest, Tokens
from glm53ctl.plan import CpuPlan, EngineName, ListenPlan, Mode, ModelPlan, Plan

REFERENCE = Path(__file__).parents[2] / "reference"


def tiny_plan(context_tokens: int = 4096) -> Plan:
    return Plan(
        mode=Mode.CPU,
        engine=EngineName.CPU,
        model=ModelPlan(str(REFERENCE / "tiny"), "tiny", context_tokens),
        listen=ListenPlan(),
        cpu=CpuPlan(threads=2, cpus=()),
    )


class Driver:
    """Runs an engine's async side from plain tests; every call is its own event loop."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(asyncio.wait_for(work, 60))

    async def collect(self, request: GenRequest) -> list[Event]:
        return [event async for event in self.engine.submit(request)]

    def events(self, request: GenRequest) -> list[Event]:
        return self.run(self.collect(request))

    def ids(self, request: GenRequest) -> list[int]:
        return produced(self.events(request))


def produced(events: list[Event]) -> list[int]:
    """The generated ids; also checks that the stream has exactly one end, at its end."""
    assert [isinstance(event, Done | Failed) for event in events].count(True) == 1
    assert isinstance(events[-1], Done), events[-1]
    return [id_ for event in events if isinstance(event, Tokens) for id_ in event.ids]
