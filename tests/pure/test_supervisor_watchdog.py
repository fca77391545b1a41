"""ok, idle or stalled: what a series of answers, late answers and no answers means."""

from __future__ import annotations

import asyncio
import socket

from glm53ctl.plan import CpuPlan, EngineName, ListenPlan, Mode, ModelPlan, Plan
from glm53ctl.supervisor.lifecycle import Policy
from glm53ctl.supervisor.pulse import PulseReader
from glm53ctl.supervisor.watchdog import (
    Health,
    Pulse,
    Silence,
    Watch,
    judge,
    parse_pulse,
    policy_for,
)

POLICY = Policy(stall_s=60, silent_s=120)


def series(*seen: tuple[float, Pulse | Silence], policy: Policy = POLICY) -> Watch:
    watch = Watch.start(0.0)
    for at, what in seen:
        watch = judge(watch, what, at, policy)
        if watch.health is Health.STALLED:
            break
    return watch


def test_T064_idle_ok_and_stalled():
    idle = series((0, Pulse(7, 0, 0)), (3 * 3600, Pulse(7, 0, 0)))
    assert idle.health is Health.IDLE
    assert series((0, Pulse(7, 1, 0)), (59, Pulse(7, 1, 0))).health is Health.OK
    stalled = series((0, Pulse(7, 1, 0)), (61, Pulse(7, 1, 0)))
    assert stalled.health is Health.STALLED
    assert stalled.words == "1 running, 0 queued, but no step for 61 s"


def test_T060_frozen_steps_with_work_in_flight_are_a_stall_however_healthy_http_is():
    beats = [(float(at), Pulse(100, 3, 0)) for at in range(0, 70, 2)]
    assert series(*beats).health is Health.STALLED


def test_T065_late_answers_with_rising_steps_are_healthy():
    beats = []
    for at in range(0, 3600, 20):
        beats += [(float(at), Silence(refused=False)), (at + 9.0, Pulse(at + 1, 4, 2))]
    assert series(*beats).health is Health.OK


def test_waiting_requests_count_as_work():
    assert series((0, Pulse(7, 0, 2)), (61, Pulse(7, 0, 2))).health is Health.STALLED


def test_work_after_a_long_idle_time_starts_a_new_clock():
    watch = series((0, Pulse(7, 0, 0)), (5000, Pulse(7, 1, 0)), (5059, Pulse(7, 1, 0)))
    assert watch.health is Health.OK


def test_busy_prefill_with_slow_steps_learns_patience():
    beats = [(0, Pulse(1, 1, 0)), (50, Pulse(2, 1, 0)), (100, Pulse(3, 1, 0))]
    assert series(*beats, (290, Pulse(3, 1, 0))).health is Health.OK
    assert series(*beats, (301, Pulse(3, 1, 0))).health is Health.STALLED


def test_no_answer_is_not_idle_and_not_dead_at_once():
    assert series((0, Pulse(7, 1, 0)), (119, Silence(refused=False))).health is Health.OK
    silent = series((0, Pulse(7, 0, 0)), (120, Silence(refused=False)))
    assert silent.health is Health.STALLED
    assert silent.words == "no answer to /stats for 120 s"


def test_T078_a_closed_door_means_dead_unless_it_is_a_drain():
    refused = Silence(refused=True)
    two = series((0, Pulse(7, 0, 0)), (2, refused), (4, refused), (6, Pulse(7, 0, 0)), (8, refused))
    assert two.health is Health.IDLE
    draining = series((0, Pulse(7, 0, 0)), (2, refused), (4, refused), (34, refused))
    assert draining.health is Health.IDLE
    dead = series((0, Pulse(7, 0, 0)), (2, refused), (4, refused), (36, refused))
    assert dead.health is Health.STALLED
    assert dead.words == "the process lives but has refused connections for 36 s"


def test_stats_without_a_pulse_are_no_pulse():
    assert parse_pulse({"steps": 1, "running": 0, "queued": 0}) == Pulse(1, 0, 0)
    for body in ({}, {"steps": "x"}, [], None, {"steps": 1, "running": None, "queued": 0}):
        assert parse_pulse(body) is None


def test_the_cpu_mode_is_given_more_time():
    assert policy_for("cpu", POLICY).stall_s == 300
    assert policy_for("fast", POLICY) == POLICY


class Server:
    """Answers every request with one body, and remembers the requests."""

    def __init__(self, body: bytes, delay_s: float = 0.0) -> None:
        self.body, self.delay_s = body, delay_s
        self.seen: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen.append((await reader.readuntil(b"\r\n")).decode().rsplit(" ", 1)[0])
        await asyncio.sleep(self.delay_s)
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(self.body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + self.body)
        await writer.drain()
        writer.close()


def a_plan() -> Plan:
    model, listen = ModelPlan("/nowhere", "tiny", 2048), ListenPlan()
    return Plan(Mode.CPU, EngineName.SCRIPTED, model, listen, CpuPlan(1, ()))


async def observe(server: Server, *, policy: Policy = POLICY, asleep=lambda: 0.0, reads: int = 1):
    listener = await asyncio.start_server(server, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    reader = PulseReader(a_plan(), policy, asleep)
    async with listener:
        for _ in range(reads):
            seen = await reader.read(url, Watch.start(0.0))
            await asyncio.sleep(0.05 + server.delay_s)
    return seen, reader


BODY = b'{"steps": 3, "running": 1, "queued": 0}'


def test_a_pulse_is_read_from_stats():
    server = Server(BODY)
    seen, reader = asyncio.run(observe(server))
    assert (seen, reader.waking, server.seen) == (Pulse(3, 1, 0), False, ["GET /stats"])


def test_an_answer_without_a_pulse_is_a_silence_but_no_refusal():
    assert asyncio.run(observe(Server(b"[]")))[0] == Silence(refused=False)
    slow = observe(Server(BODY, delay_s=1.2), policy=Policy(silent_s=1.0))
    assert asyncio.run(slow)[0] == Silence(refused=False)


def test_a_closed_port_is_a_refusal():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        reader = PulseReader(a_plan(), POLICY)
        assert asyncio.run(reader.read(url, Watch.start(0.0))) == Silence(refused=True)


def test_a_long_idle_server_is_asked_for_one_token():
    server = Server(BODY)
    asyncio.run(observe(server, policy=Policy(canary_idle_s=0.0)))
    assert sorted(server.seen) == ["GET /stats", "POST /v1/completions"]


def test_T068_waking_from_suspend_is_noticed_and_tried_with_one_token():
    hours = iter([0.0, 4 * 3600.0, 4 * 3600.0])
    server = Server(BODY)
    _, reader = asyncio.run(observe(server, asleep=lambda: next(hours), reads=2))
    assert reader.waking
    assert server.seen.count("POST /v1/completions") == 1
