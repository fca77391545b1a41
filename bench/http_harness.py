"""A server process of one's own for measurements over HTTP, with the scripted engine behind it."""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import psutil

from glm53ctl.plan import (
    CpuPlan,
    EngineName,
    LimitsPlan,
    ListenPlan,
    Mode,
    ModelPlan,
    Plan,
    ScriptPlan,
)

ROOT = Path(__file__).resolve().parent.parent
CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "Hi"}]}


def plan(tokens_per_s: float, *, max_batch: int = 64, context: int = 65536) -> Plan:
    return Plan(
        mode=Mode.CPU,
        engine=EngineName.SCRIPTED,
        model=ModelPlan(str(ROOT / "reference" / "tiny"), "tiny", context),
        listen=ListenPlan(port=0),
        cpu=CpuPlan(1, ()),
        limits=LimitsPlan(max_batch=max_batch, max_queued=256),
        script=ScriptPlan(text="plan</think>" + "word " * 200, tokens_per_s=tokens_per_s),
    )


class Server:
    """A server process and a client of it."""

    def __init__(self, process: asyncio.subprocess.Process, client: httpx.AsyncClient) -> None:
        self.client = client
        self.process = psutil.Process(process.pid)

    def rss_bytes(self) -> int:
        return self.process.memory_info().rss

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    async def stats(self) -> dict[str, object]:
        return (await self.client.get("/stats")).json()

    async def idle(self, within_s: float) -> float:
        """Seconds until nothing runs or waits."""
        start_s = time.monotonic()
        while True:
            stats = await self.stats()
            if stats["running"] == stats["queued"] == stats["in_flight"] == 0:
                return time.monotonic() - start_s
            if time.monotonic() - start_s > within_s:
                raise SystemExit(f"still busy after {within_s} s: {stats}")
            await asyncio.sleep(0.02)


@asynccontextmanager
async def server(the_plan: Plan) -> AsyncIterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        listen = replace(the_plan.listen, port=port)
        path = Path(folder) / "plan.json"
        path.write_text(replace(the_plan, listen=listen).to_json())
        command = [sys.executable, "-m", "glm53_server", "--plan", str(path)]
        process = await asyncio.create_subprocess_exec(*command)
        limits = httpx.Limits(max_connections=500, max_keepalive_connections=64)
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
            try:
                await answering(client)
                yield Server(process, client)
            finally:
                process.terminate()
                await process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def answering(client: httpx.AsyncClient) -> None:
    for _ in range(600):
        try:
            if (await client.get("/health")).status_code == 200:
                return
        except httpx.TransportError:
            await asyncio.sleep(0.1)
    raise SystemExit("the server did not start")
