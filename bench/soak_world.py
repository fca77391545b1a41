"""The ground the supervision soak stands on: one instance, an observer, a memory cgroup, a false clock."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from glm53ctl import client
from glm53ctl.paths import tiny_checkpoint
from glm53ctl.plan import CpuPlan, EngineName, ListenPlan, Mode, ModelPlan, Plan, ScriptPlan
from glm53ctl.supervisor.lifecycle import Policy
from glm53ctl.supervisor.state import Identity, Instance, session_members

Record = dict[str, Any]
POLICY = Policy(
    start_stall_s=20.0,
    drain_s=1.0,
    grace_s=2.0,
    kill_s=5.0,
    backoff_first_s=0.3,
    backoff_cap_s=0.5,
    stable_s=0.05,
    poll_s=0.1,
    stall_s=0.2,  # five times that on the CPU
    silent_s=3.0,
)
_CLOCK_C = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long *shift;
__attribute__((constructor)) static void start(void) {
    const char *path = getenv("SOAK_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) shift = page;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (!result && clock == CLOCK_REALTIME && shift) now->tv_sec += *shift;
    return result;
}
int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
"""


class Wrong(Exception):
    """The supervisor did something it must not do; the text says what."""


class FalseClock:
    """A wall clock that can be stepped, for every process started after this is made."""

    def __init__(self, folder: Path) -> None:
        source, library, page = folder / "clock.c", folder / "clock.so", folder / "clock.shift"
        source.write_text(_CLOCK_C)
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        page.write_bytes(bytes(mmap.PAGESIZE))
        self._file = page.open("r+b")
        self._page = mmap.mmap(self._file.fileno(), mmap.PAGESIZE)
        os.environ["LD_PRELOAD"], os.environ["SOAK_CLOCK"] = str(library), str(page)

    def step(self, seconds: int) -> None:
        ctypes.c_long.from_buffer(self._page).value = seconds


class MemoryCgroup:
    """A memory cgroup (v1 or v2) around this process and all it starts. Raises OSError if it may not."""

    def __init__(self) -> None:
        self.v1, home = self._home()
        self.folder = home / f"soak-{os.getpid()}"
        self.folder.mkdir()
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))
        self._home_folder = home

    @staticmethod
    def _home() -> tuple[bool, Path]:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                return True, Path("/sys/fs/cgroup/memory") / path.lstrip("/")
        return False, Path("/sys/fs/cgroup") / path.lstrip("/")

    def limit(self, size_bytes: int | None) -> None:
        name, none = ("memory.limit_in_bytes", "-1") if self.v1 else ("memory.max", "max")
        (self.folder / name).write_text(none if size_bytes is None else str(size_bytes))

    def used_bytes(self) -> int:
        name = "memory.usage_in_bytes" if self.v1 else "memory.current"
        return int((self.folder / name).read_text())

    def leave(self) -> None:
        (self._home_folder / "cgroup.procs").write_text(str(os.getpid()))
        with suppress(OSError):
            self.folder.rmdir()


class Observer(threading.Thread):
    """Reads state.json all the time: it must always parse. Remembers every process it names."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path = path
        self.over = threading.Event()
        self.reads = self.torn = 0
        self.seen: set[Identity] = set()

    def run(self) -> None:
        while not self.over.wait(0.02):
            with suppress(FileNotFoundError):
                text = self._path.read_text(encoding="utf-8")
                self.reads += 1
                try:
                    record = json.loads(text)
                except ValueError:
                    self.torn += 1
                    continue
                for name in ("supervisor", "child"):
                    if found := Identity.from_dict(record.get(name)):
                        self.seen.add(found)


class World:
    """One instance under test."""

    def __init__(self, folder: Path) -> None:
        self.instance = Instance.locate("soak", folder=folder / "soak", runtime_dir=folder)
        self.instance.create()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.observer = Observer(self.instance.state_path)
        self.cgroup: MemoryCgroup | None = None
        self.clock: FalseClock | None = None
        self.launches = 0

    def plan(self, **script: Any) -> Plan:
        return Plan(
            mode=Mode.CPU,
            engine=EngineName.SCRIPTED,
            model=ModelPlan(str(tiny_checkpoint()), "tiny", 2048),
            listen=ListenPlan("127.0.0.1", self.port),
            cpu=CpuPlan(1, ()),
            script=ScriptPlan(**script),
        )

    def launch(self, policy: Policy = POLICY, **script: Any) -> Record:
        """Start anew with this script; the record when it is ready or over."""
        self.stop()
        if not client.launch(self.instance, self.plan(**script), policy):
            raise Wrong("launch says it is running although it was stopped")
        self.launches += 1
        return self.settle()

    def stop(self) -> None:
        client.stop(self.instance, 0.2)

    def settle(self) -> Record:
        record: Record = {}
        for record in client.watch(self.instance):
            if record["phase"] == "ready":
                break
        return record

    def record(self) -> Record:
        record, _ = client.current(self.instance)
        if record is None:
            raise Wrong("no record")
        return record

    def serving(self) -> Record:
        """Make it serve with a well-behaved script, whatever it is doing now.

        It has served for a stable stretch then: five crashes without one open the breaker, rightly.
        """
        ready = False
        with suppress(client.NotRunning):
            ready = self.settle()["phase"] == "ready"
        if not ready:
            record = self.launch()
            if record["phase"] != "ready":
                raise Wrong(f"a plain start ended as {record['phase']}: {record['last_failure']}")
        return self.wait(
            "a stable stretch",
            lambda now: now["phase"] == "ready" and now["phase_s"] >= 2 * POLICY.stable_s,
        )

    def wait(self, what: str, true: Callable[[Record], bool], limit_s: float = 20.0) -> Record:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            record = self.record()
            if true(record):
                return record
            time.sleep(0.02)
        raise Wrong(f"not within {limit_s} s: {what}; it is {record['phase']}, {_last(record)}")

    def restarted(self, before: Record, kind: str) -> Record:
        """Wait for the next child to serve; its predecessor's end must be called `kind`."""
        record = self.wait(
            f"restart after {kind}",
            lambda now: now["phase"] == "ready" and now["restarts"] > before["restarts"],
        )
        if _last(record) != kind:
            raise Wrong(f"verdict {_last(record)!r}, expected {kind!r}")
        return record

    def ended(self, record: Record, kind: str, exit_code: int) -> None:
        """The instance must have stopped for this reason, and left nothing."""
        found = (record["phase"], _last(record), record["exit_code"])
        if found != ("failed", kind, exit_code):
            raise Wrong(f"ended as {found}, expected failed, {kind!r}, {exit_code}")

    @contextmanager
    def port_stolen(self) -> Iterator[None]:
        with socket.create_server(("127.0.0.1", self.port)):
            yield

    def check_invariants(self) -> None:
        """No orphan, no zombie, one child at most, a state file that parses."""
        record = self.record()
        current = {record[name]["pid"] for name in ("supervisor", "child") if record[name]}
        for old in [seen for seen in self.observer.seen if seen.pid not in current]:
            if old.alive() or session_members(old.pid):
                raise Wrong(f"orphan: pid {old.pid} of an earlier child lives")
            self.observer.seen.discard(old)
        if record["supervisor"]:
            children = psutil.Process(record["supervisor"]["pid"]).children()
            zombies = [item.pid for item in children if item.status() == psutil.STATUS_ZOMBIE]
            if zombies or len(children) > 1:
                raise Wrong(f"children {[item.pid for item in children]}, zombies {zombies}")
        if self.observer.torn:
            raise Wrong(f"state.json was not parseable {self.observer.torn} times")


def _last(record: Record) -> str | None:
    return record["last_failure"]["kind"] if record["last_failure"] else None
