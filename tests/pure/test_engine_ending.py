"""An engine's end is asked for by the guard, the lifespan and the server itself: it happens once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from glm53_server.engine.exl3 import Exl3Engine
from glm53_server.engine.jobs import Ending


class Counted:
    def __init__(self, fails: bool = False) -> None:
        self.times, self.fails = 0, fails

    async def end(self) -> None:
        self.times += 1
        await asyncio.sleep(0.02)
        if self.fails:
            raise RuntimeError("it did not end well")


def test_all_callers_wait_for_one_end() -> None:
    counted = Counted()

    async def play() -> None:
        ending = Ending(counted.end)
        await asyncio.gather(ending.wait(), ending.wait())
        await ending.wait()

    asyncio.run(play())
    assert counted.times == 1


def test_a_caller_that_gives_up_does_not_stop_it() -> None:
    counted = Counted()

    async def play() -> None:
        ending = Ending(counted.end)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ending.wait(), 0.001)
        await ending.wait()

    asyncio.run(play())
    assert counted.times == 1


def test_it_may_be_asked_for_again_in_another_loop() -> None:
    counted = Counted()
    ending = Ending(counted.end)
    asyncio.run(ending.wait())
    asyncio.run(ending.wait())
    assert counted.times == 1


def test_a_failure_is_told_to_everyone() -> None:
    counted = Counted(fails=True)

    async def play() -> list[BaseException | None]:
        ending = Ending(counted.end)
        return list(await asyncio.gather(ending.wait(), ending.wait(), return_exceptions=True))

    assert [str(err) for err in asyncio.run(play())] == ["it did not end well"] * 2
    assert counted.times == 1


def test_the_gpu_engine_gives_everything_back_once() -> None:
    closed: list[str] = []
    session: Any = SimpleNamespace(
        has_work=False, tiers=None, tier_stats=None, close=lambda: closed.append("session")
    )
    info: Any = SimpleNamespace(vocab_size=8, context_tokens=64)

    async def play() -> None:
        engine = Exl3Engine(session, info)
        await asyncio.gather(engine.close(), engine.close())
        await engine.close()

    asyncio.run(play())
    assert closed == ["session"]
