"""An engine that is lost, and one that cannot be given back: what the process's end is called."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from glm53_server.engine.base import EngineState
from glm53_server.engine.scripted import ScriptedEngine
from glm53_server.serving import serve
from glm53_server.tokenizer import Tokenizer
from glm53ctl.errors import ChildExit
from glm53ctl.plan import Plan, ScriptPlan


class Torn(ScriptedEngine):
    """A device is lost, and everything that is asked of it afterwards raises, as CUDA's calls do."""

    def __init__(self, plan: Plan, *, lost: bool, closes: bool) -> None:
        super().__init__(
            plan, plan.script or ScriptPlan(), Tokenizer(Path(plan.model.path) / "tokenizer.json")
        )
        self.lost, self.closes = lost, closes

    @property
    def state(self) -> EngineState:
        return EngineState.LOST if self.lost else super().state

    async def close(self) -> None:
        await super().close()
        if not self.closes:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """serve() takes SIGTERM and SIGINT for good: a process serves once."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ended(engine: Torn, plan: Plan) -> ChildExit:
    """How a server ends that is asked to as soon as it is ready, unless its engine is lost."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def ready() -> None:
            if not engine.lost:
                signal.raise_signal(signal.SIGTERM)

        async def bounded() -> ChildExit:
            async with asyncio.timeout(20):
                return await serve(engine, plan, listener, 5.0, ready)

        return asyncio.run(bounded())


@pytest.mark.parametrize("closes", [True, False])
def test_a_lost_engine_is_the_reason_however_it_closes(plan_of, closes: bool) -> None:
    """A restart heals it; a crash in its last words would be called something else."""
    plan = plan_of()
    assert ended(Torn(plan, lost=True, closes=closes), plan) is ChildExit.ENGINE_LOST


def test_a_clean_stop_is_no_failure(plan_of) -> None:
    plan = plan_of()
    assert ended(Torn(plan, lost=False, closes=True), plan) is ChildExit.OK


def test_a_stop_that_cannot_give_the_engine_back_is_told(plan_of) -> None:
    plan = plan_of()
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        ended(Torn(plan, lost=False, closes=False), plan)
