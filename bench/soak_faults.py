"""The faults of the supervision soak. Each one injects, then checks the verdict; `Wrong` is a finding."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
from soak_world import POLICY, World, Wrong

from glm53ctl import client
from glm53ctl.supervisor.state import Identity

SIGNALS = {
    signal.SIGKILL: "killed",
    signal.SIGSEGV: "segmentation fault",
    signal.SIGABRT: "abort",
    signal.SIGBUS: "bus error",
    signal.SIGTERM: "quit",
}
MIB = 1 << 20
# It stands in line right after the child, in case the next one is up before it has ended.
_HOG = """
import sys
open("/proc/self/oom_score_adj", "w").write("900")
held = bytearray(int(sys.argv[1]))
held[::4096] = b"x" * len(held[::4096])
"""


def _child(world: World) -> int:
    return world.serving()["child"]["pid"]


def _generate(world: World, tokens: int = 40) -> None:
    """A request that may well die with its server."""
    body = {"model": "tiny", "prompt": "a", "max_tokens": tokens, "min_tokens": tokens}
    with suppress(httpx.HTTPError):
        httpx.post(f"http://127.0.0.1:{world.port}/v1/completions", json=body, timeout=20)


def kill(world: World, rng: random.Random) -> None:
    before = world.serving()
    number = rng.choice(list(SIGNALS))
    os.kill(before["child"]["pid"], number)
    world.restarted(before, SIGNALS[number])


def kill_while_starting(world: World, rng: random.Random) -> None:
    before = world.serving()
    os.kill(before["child"]["pid"], signal.SIGKILL)
    starting = world.wait(
        "a new child",
        lambda now: now["phase"] == "starting" and now["restarts"] > before["restarts"],
    )
    time.sleep(rng.uniform(0.0, 0.4))
    with suppress(ProcessLookupError):
        os.kill(starting["child"]["pid"], signal.SIGKILL)
    world.restarted(starting, "killed")


def illegal_instruction(world: World, _rng: random.Random) -> None:
    os.kill(_child(world), signal.SIGILL)
    world.ended(
        world.wait("the end", lambda now: now["phase"] == "failed"), "illegal instruction", 8
    )


def freeze(world: World, _rng: random.Random) -> None:
    """SIGSTOP: the process lives, answers nothing, and cannot hear SIGTERM."""
    before = world.serving()
    os.kill(before["child"]["pid"], signal.SIGSTOP)
    world.restarted(before, "stalled")


def short_freeze(world: World, rng: random.Random) -> None:
    """Busy is not dead: a pause shorter than the limit changes nothing."""
    before = world.serving()
    os.kill(before["child"]["pid"], signal.SIGSTOP)
    time.sleep(rng.uniform(0.1, 1.0))
    os.kill(before["child"]["pid"], signal.SIGCONT)
    time.sleep(0.3)
    _unchanged(world, before["child"]["pid"], before["restarts"])


def hang(world: World, rng: random.Random) -> None:
    before = world.launch(hang_after_tokens=rng.randint(1, 10))
    _generate(world)
    world.restarted(before, "stalled")
    world.stop()


def crash(world: World, rng: random.Random) -> None:
    before = world.launch(crash_after_tokens=rng.randint(1, 10))
    _generate(world)
    world.restarted(before, "crash")
    world.stop()


def slow_start(world: World, rng: random.Random) -> None:
    record = world.launch(start_delay_s=rng.uniform(0.2, 1.5))
    if record["phase"] != "ready":
        raise Wrong(f"a slow start ended as {record['phase']}")


def endless_start(world: World, _rng: random.Random) -> None:
    record = world.launch(replace(POLICY, start_stall_s=1.5), start_delay_s=60.0)
    world.ended(record, "start timeout", 8)


def port_stolen(world: World, _rng: random.Random) -> None:
    world.stop()
    with world.port_stolen():
        world.ended(world.launch(), "port taken", 6)


def port_stolen_in_back_off(world: World, _rng: random.Random) -> None:
    os.kill(_child(world), signal.SIGKILL)
    world.wait("back-off", lambda now: now["phase"] == "backoff")
    with world.port_stolen():
        record = world.wait("the end", lambda now: now["phase"] == "failed")
    world.ended(record, "port taken", 6)


def gpu_lost(world: World, _rng: random.Random) -> None:
    world.ended(world.launch(exit_code_at_start=69), "no GPU", 4)


def bad_model(world: World, _rng: random.Random) -> None:
    world.ended(world.launch(exit_code_at_start=65), "bad model", 7)


def out_of_memory(world: World, _rng: random.Random) -> None:
    """A neighbour eats the cgroup's memory, and the kernel picks our child."""
    assert world.cgroup is not None
    before = world.serving()
    Path(f"/proc/{before['child']['pid']}/oom_score_adj").write_text("1000")
    world.cgroup.limit(world.cgroup.used_bytes() + 32 * MIB)
    try:
        subprocess.run([sys.executable, "-S", "-c", _HOG, str(64 * MIB)], check=False)
        record = world.restarted(before, "out of memory")
    finally:
        world.cgroup.limit(None)
    if not record["last_failure"]["proof"]:
        raise Wrong(f"no proof: {record['last_failure']}")


def full_disk(world: World, _rng: random.Random) -> None:
    """Nothing can be written, yet a killed child comes back; afterwards the record is right again."""
    before = world.serving()
    ballast = world.instance.folder / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(65536))
    try:
        os.kill(before["child"]["pid"], signal.SIGKILL)
        world.restarted(before, "killed")
    finally:
        ballast.unlink()


def clock_step(world: World, rng: random.Random) -> None:
    """Days forwards or back: nobody is late, nothing is restarted."""
    assert world.clock is not None
    before = world.serving()
    world.clock.step(rng.randint(-20, 20) * 86400)
    time.sleep(0.5)
    _unchanged(world, before["child"]["pid"], before["restarts"])
    os.kill(before["child"]["pid"], signal.SIGKILL)
    world.restarted(before, "killed")


def parent_killed(world: World, _rng: random.Random) -> None:
    before = world.serving()
    os.kill(before["supervisor"]["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 5.0
    while Identity.of(before["child"]["pid"]) is not None:
        if time.monotonic() > deadline:
            raise Wrong("the child outlived its supervisor by 5 s")
        time.sleep(0.01)
    if world.record()["phase"] != "stopped":
        raise Wrong("the record of a dead supervisor was not closed")


def parent_frozen(world: World, rng: random.Random) -> None:
    """A supervisor that was stopped for a while catches up."""
    before = world.serving()
    os.kill(before["supervisor"]["pid"], signal.SIGSTOP)
    os.kill(before["child"]["pid"], signal.SIGKILL)
    time.sleep(rng.uniform(0.1, 1.0))
    os.kill(before["supervisor"]["pid"], signal.SIGCONT)
    world.restarted(before, "killed")


def crash_loop(world: World, _rng: random.Random) -> None:
    record = world.launch(replace(POLICY, breaker_crashes=2, stable_s=600.0))
    os.kill(record["child"]["pid"], signal.SIGKILL)
    record = world.restarted(record, "killed")
    os.kill(record["child"]["pid"], signal.SIGKILL)
    world.ended(world.wait("the end", lambda now: now["phase"] == "failed"), "breaker open", 9)


def restart_and_stop(world: World, rng: random.Random) -> None:
    before = world.serving()
    client.request(world.instance, {"verb": "restart", "drain_s": 0.1})
    world.wait("a new child", lambda now: _pid(now) not in {None, before["child"]["pid"]})
    if rng.random() < 0.5:
        world.settle()
    if not client.stop(world.instance, 0.1) or client.stop(world.instance, 0.1):
        raise Wrong("down twice: the first must stop something, the second nothing")
    if world.instance.lock_path.exists() or world.instance.socket_path.exists():
        raise Wrong("down left a lock or a socket")


def spoiled_files(world: World, rng: random.Random) -> None:
    """Rubbish where our files should be must not keep the next start from working."""
    world.stop()
    world.instance.lock_path.write_bytes(rng.randbytes(40))
    world.instance.socket_path.write_bytes(b"")
    world.instance.state_path.write_text('{"schema": "glm53ctl.state/1", "phase": "ready"}')
    if world.launch()["phase"] != "ready":
        raise Wrong("rubbish files kept it from starting")


def _pid(record: dict) -> int | None:
    return record["child"]["pid"] if record["child"] else None


def _unchanged(world: World, child: int, restarts: int) -> None:
    now = world.record()
    if (now["phase"], _pid(now), now["restarts"]) != ("ready", child, restarts):
        raise Wrong(f"a healthy child was touched: {now['phase']}, {now['last_failure']}")


Fault = Callable[[World, random.Random], None]
# name -> (fault, weight)
FAULTS: dict[str, tuple[Fault, int]] = {
    "kill": (kill, 6),
    "kill while starting": (kill_while_starting, 3),
    "illegal instruction": (illegal_instruction, 1),
    "freeze": (freeze, 1),
    "short freeze": (short_freeze, 2),
    "hang": (hang, 2),
    "crash": (crash, 2),
    "slow start": (slow_start, 2),
    "endless start": (endless_start, 1),
    "port stolen": (port_stolen, 2),
    "port stolen in back-off": (port_stolen_in_back_off, 2),
    "gpu lost": (gpu_lost, 2),
    "bad model": (bad_model, 1),
    "out of memory": (out_of_memory, 2),
    "full disk": (full_disk, 3),
    "clock step": (clock_step, 2),
    "parent killed": (parent_killed, 4),
    "parent frozen": (parent_frozen, 2),
    "crash loop": (crash_loop, 1),
    "restart and stop": (restart_and_stop, 3),
    "spoiled files": (spoiled_files, 1),
}
