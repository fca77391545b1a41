"""Load, abuse and overhead of the HTTP server, measured from outside on a server process of its own.

    python bench/http_soak.py [--hostile 10000] [--streams 64] [--seconds 60] [--rounds 10] [--out FILE]

The scripted engine stands in for a model, so that what is measured is ours. Prints every figure with
its limit, writes bench/results/DATE-http-soak.json and exits 1 when a limit is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shlex
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import httpx
import psutil
from hostile import hostile_requests
from http_harness import ASK, CHAT, ROOT, Server, plan, server

from glm53_server.engine import scripted
from glm53_server.engine.base import GenRequest, Tokens
from glm53ctl.bench import provenance


async def hostile(count: int) -> dict[str, object]:
    """Fuzzed requests of every kind, sixteen at a time, some sent slowly, some abandoned."""
    codes: Counter[int] = Counter()
    broken: list[str] = []
    async with server(plan(0, context=512)) as under_test:
        requests = iter(list(islice(hostile_requests(20261129), count)))
        rng = random.Random(1)
        before = under_test.rss_bytes()

        async def slowly(body: bytes) -> AsyncIterator[bytes]:
            for start in range(0, len(body), max(1, len(body) // 5)):
                yield body[start : start + max(1, len(body) // 5)]
                await asyncio.sleep(0.002)

        async def worker() -> None:
            for request in requests:
                slow = rng.random() < 0.05
                content = slowly(request.body) if slow else request.body
                headers = {"content-type": request.content_type}
                timeout = 0.01 if rng.random() < 0.03 else 60
                try:
                    answer = await under_test.client.post(
                        request.path, content=content, headers=headers, timeout=timeout
                    )
                except httpx.TimeoutException:
                    codes[0] += 1  # we left
                    continue
                codes[answer.status_code] += 1
                if answer.status_code >= 500 and answer.status_code != 503:
                    broken.append(f"{answer.status_code} {request.path} {request.body[:200]!r}")

        start_s = time.monotonic()
        await asyncio.gather(*(worker() for _ in range(16)))
        seconds = time.monotonic() - start_s
        idle_s = await under_test.idle(5)
        after = await under_test.client.post(CHAT, json=ASK)
        return {
            "requests": count,
            "seconds": round(seconds, 1),
            "statuses": {str(code): number for code, number in sorted(codes.items())},
            "server_errors": len(broken),
            "examples": broken[:5],
            "idle_after_s": round(idle_s, 3),
            "normal_request_after": after.status_code,
            "rss_growth_bytes": under_test.rss_bytes() - before,
        }


async def streams(count: int, seconds: float, rounds: int) -> dict[str, object]:
    """`count` streams at once, each left at a random moment, while /health is asked all the time."""
    rss: list[int] = []
    idle_s: list[float] = []
    ends: Counter[str] = Counter()
    async with server(plan(50)) as under_test:
        url = under_test.client.base_url
        probe = await start_probe(url)
        await asyncio.sleep(5)
        unloaded_ms = await stop_probe(probe)
        probe = await start_probe(url)
        fds = under_test.process.num_fds()
        for number in range(rounds):
            end_s = time.monotonic() + seconds / rounds
            seeds = (random.Random(number * 1000 + i) for i in range(count))
            await asyncio.gather(*(leave_often(url, seed, end_s, ends) for seed in seeds))
            idle_s.append(await under_test.idle(5))
            rss.append(under_test.rss_bytes())
        health_ms = await stop_probe(probe)
        await under_test.client.aclose()
        await asyncio.sleep(0.5)
        leaked = under_test.process.num_fds() - fds
    return {
        "streams": count,
        "seconds": seconds,
        "finished": ends["finished"],
        "left_early": ends["left"],
        "health_probes": len(health_ms),
        "health_unloaded_p99_ms": round(unloaded_ms[int(len(unloaded_ms) * 0.99)], 2),
        "health_p50_ms": round(statistics.median(health_ms), 2),
        "health_p99_ms": round(health_ms[int(len(health_ms) * 0.99)], 2),
        "idle_after_s": round(max(idle_s), 3),
        "rss_bytes": rss,
        "rss_growth": round(rss[-1] / rss[0] - 1, 4),
        "fds_leaked": max(0, leaked),
    }


async def leave_often(url: httpx.URL, rng: random.Random, end_s: float, ends: Counter[str]) -> None:
    """Open streams one after the other and close the socket at a random moment of each."""
    while time.monotonic() < end_s:
        body = json.dumps({**ASK, "stream": True, "max_tokens": rng.randint(5, 100)})
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(
            f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        chunks_left = rng.randint(1, 120)
        while chunks_left and await reader.read(65536):
            chunks_left -= 1
        ends["finished" if chunks_left else "left"] += 1
        writer.close()


async def start_probe(url: httpx.URL) -> asyncio.subprocess.Process:
    """A process of its own, so that our load does not slow the clock it reads."""
    command = [sys.executable, __file__, "--probe", str(url)]
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)


async def stop_probe(probe: asyncio.subprocess.Process) -> list[float]:
    """Its times in milliseconds, sorted."""
    probe.terminate()
    return sorted(json.loads((await probe.communicate())[0]))


def probe_health(url: str) -> None:
    """Ask /health until told to stop, then print the answers' times in milliseconds."""
    times_ms: list[float] = []

    def stop(*_: object) -> None:
        print(json.dumps(times_ms), flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    with httpx.Client(base_url=url) as client:
        while True:
            start_s = time.monotonic()
            assert client.get("/health").status_code == 200
            times_ms.append((time.monotonic() - start_s) * 1000)
            time.sleep(0.02)


async def overhead() -> dict[str, object]:
    """Server CPU per event with a free-running engine, and lateness of events at 200 tok/s."""
    found: dict[str, object] = {}
    tokens = 4000
    async with server(plan(0)) as under_test:
        for number in (1, 8):
            await asyncio.gather(*(read(under_test, tokens // number) for _ in range(number)))
            cpu_s, start_s = under_test.cpu_s(), time.monotonic()
            await asyncio.gather(*(read(under_test, tokens) for _ in range(number)))
            events = tokens * number
            found[f"cpu_ms_per_event_{number}_streams"] = round(
                (under_test.cpu_s() - cpu_s) / events * 1000, 4
            )
            found[f"events_per_s_{number}_streams"] = round(
                events / (time.monotonic() - start_s), 1
            )
    found["engine_late_ms_p50"] = round(await engine_late_ms(1000), 3)
    async with server(plan(200)) as under_test:
        for number in (1, 8):
            every = await asyncio.gather(*(read(under_test, 1000) for _ in range(number)))
            late = sorted(lateness for stamps in every for lateness in lateness_ms(stamps, 200))
            found[f"late_ms_p50_{number}_streams"] = round(statistics.median(late), 3)
            found[f"late_ms_p99_{number}_streams"] = round(late[int(len(late) * 0.99)], 3)
            found[f"tokens_per_s_{number}_streams"] = round(
                statistics.mean((len(s) - 1) / (s[-1] - s[0]) for s in every), 2
            )
            halves = [sum(t - s[0] < (s[-1] - s[0]) / 2 for t in s) / len(s) for s in every]
            tails = [sum(s[-1] - t < 1 for t in s) / len(s) for s in every]
            found[f"half_share_{number}_streams"] = round(statistics.mean(halves), 3)
            found[f"last_second_share_{number}_streams"] = round(max(tails), 3)
    return found


async def engine_late_ms(tokens: int) -> float:
    """Median lateness of the engine's own events, without a server around it."""
    engine = scripted.load(plan(200), lambda *_: None)
    request = GenRequest("bench", (1,), tokens)
    stamps = [time.monotonic() async for e in engine.submit(request) if isinstance(e, Tokens)]
    return statistics.median(lateness_ms(stamps, 200))


async def read(under_test: Server, tokens: int) -> list[float]:
    """Arrival times of the content chunks of one stream."""
    stamps: list[float] = []
    body = {**ASK, "stream": True, "max_tokens": tokens, "ignore_eos": True}
    async with under_test.client.stream("POST", CHAT, json=body) as answer:
        async for chunk in answer.aiter_raw():
            stamps += [time.monotonic()] * chunk.count(b'"content":"') if b"delta" in chunk else []
    return stamps[1:]


def lateness_ms(stamps: list[float], rate: float) -> list[float]:
    """How much later than the earliest possible steady delivery each event came."""
    behind = [stamp - i / rate for i, stamp in enumerate(stamps)]
    return [(late - min(behind)) * 1000 for late in behind]


def judge(found: dict[str, dict[str, object]]) -> list[str]:
    """Broken limits, in words."""
    limits = [
        ("hostile", "server_errors", 0),
        ("hostile", "idle_after_s", 1.0),
        ("streams", "health_p99_ms", 100.0),
        ("streams", "rss_growth", 0.05),
        ("streams", "fds_leaked", 0),
        ("streams", "idle_after_s", 1.0),
        ("overhead", "cpu_ms_per_event_1_streams", 0.3),
        ("overhead", "cpu_ms_per_event_8_streams", 0.3),
    ]
    broken: list[str] = []
    for part, name, limit in limits:
        if part in found:
            value = float(str(found[part][name]))
            print(f"{part:9} {name:28} {value:10.3f}  limit {limit}")
            if value > limit:
                broken.append(f"{part} {name}: {value} > {limit}")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hostile", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=10)
    today = datetime.now(UTC).date().isoformat()
    default = ROOT / "bench" / "results" / f"{today}-http-soak.json"
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.probe:
        probe_health(given.probe)
    found = {"overhead": asyncio.run(overhead())}
    if given.hostile:
        found["hostile"] = asyncio.run(hostile(given.hostile))
    if given.streams:
        found["streams"] = asyncio.run(streams(given.streams, given.seconds, given.rounds))
    print(json.dumps(found, indent=2))
    broken = judge(found)
    machine = {"cpus": psutil.cpu_count(), "python": sys.version.split()[0]}
    record = {
        "bench": "http_soak", "recorded": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": provenance.commit(), "command": shlex.join(["python3", *sys.argv]),
        "machine": machine, **found,
    }  # fmt: skip
    given.out.write_text(json.dumps({**record, "broken": broken}, indent=2) + "\n")
    for line in broken:
        print("BROKEN", line)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
