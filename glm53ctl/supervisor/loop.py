"""The supervisor's one task: events in, actions out. The only writer of the state and of state.json.

Everything else (pipe reader, exit watch, watchdog, control socket, signals) only posts events.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from glm53ctl.env import Environ
from glm53ctl.plan import Plan
from glm53ctl.probes.system import this_system
from glm53ctl.supervisor import lifecycle, logs, oom, owned, placement
from glm53ctl.supervisor.child import Child, child_environment
from glm53ctl.supervisor.classify import (
    Ending,
    Failure,
    Report,
    classify,
    lost_in_sleep,
    misplaced,
    stalled,
)
from glm53ctl.supervisor.control import Record, serve_control
from glm53ctl.supervisor.lifecycle import Action, Event, Phase, Policy, State
from glm53ctl.supervisor.machine import give_up, step
from glm53ctl.supervisor.pulse import PulseReader
from glm53ctl.supervisor.ready import LoadProgress, Message, Serving
from glm53ctl.supervisor.record import (
    plan_part,
    progress_part,
    state_part,
    transition_words,
    wall_clock,
)
from glm53ctl.supervisor.state import Identity, Instance, session_members, write_record
from glm53ctl.supervisor.watchdog import Health, Watch, judge

_PROGRESS_PERIOD_S = 0.2  # how often progress alone is worth a record


class Supervisor:
    """Owns one instance for as long as its process lives."""

    def __init__(
        self, instance: Instance, plan: Plan, policy: Policy, environment: Mapping[str, str]
    ) -> None:
        self._instance = instance
        self._plan = plan
        self._policy = policy
        self._environment = child_environment(environment, plan)
        self._state = State()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._child: Child | None = None
        self._report: Report | None = None
        self._progress: LoadProgress | None = None
        self._progress_at = 0.0
        self._url = plan.url
        self._watch: Watch | None = None
        self._pulses = PulseReader(plan, policy)
        self._nvml = this_system(Environ(environment)).nvml
        self._oom = oom.OomWitness()
        self._child_score = oom.prefer_to_survive()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._version = 0
        self._started_at = wall_clock()
        self._started = time.monotonic()
        self._identity = Identity.of(os.getpid())

    async def run(self, listener: socket.socket) -> int:
        """Supervise until stopped or failed; returns the exit code. The child is gone by then."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask_stop, None)
        control = await serve_control(listener, self)
        watchdog = asyncio.create_task(self._watch_forever())
        loop.set_exception_handler(self._on_defect)
        try:
            self._post(lifecycle.Begin(time.monotonic()))
            while self._state.exit_code is None:
                await self._turn(await self._next_event())
        finally:
            watchdog.cancel()
            if self._child is not None:
                self._child.signal_group(signal.SIGKILL)
            control.close()
        with suppress(TimeoutError):  # let watchers read the last record
            await asyncio.wait_for(control.wait_closed(), 1.0)
        return self._state.exit_code or 0

    # -- what the control socket may ask ---------------------------------------------------------

    def record(self) -> Record:
        """The state in words and numbers; what state.json and `status` show."""
        now = time.monotonic()
        child, watch = self._child, self._watch
        return {
            "instance": self._instance.name,
            **plan_part(self._plan),
            **state_part(self._state, now),
            "url": self._url,
            "health": watch.health.value if watch else None,
            "health_words": watch.words if watch else None,
            "progress": progress_part(self._progress, self._state),
            "supervisor": self._identity.to_dict() if self._identity else None,
            "child": child.identity.to_dict() if child and child.identity else None,
            "started_at": self._started_at,
            "uptime_s": round(now - self._started, 3),
        }

    async def changes(self) -> AsyncIterator[Record]:
        """The record now and after each change; the final phase's is the last."""
        seen = -1
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._version > seen)  # noqa: B023 waits here
                seen = self._version
            record = self.record()
            yield record
            if self._state.exit_code is not None:
                return

    def ask_stop(self, drain_s: float | None) -> None:
        self._post(lifecycle.Stop(time.monotonic(), drain_s))

    def ask_restart(self, drain_s: float | None) -> None:
        self._post(lifecycle.Restart(time.monotonic(), drain_s))

    # -- one turn --------------------------------------------------------------------------------

    def _post(self, event: Event) -> None:
        self._events.put_nowait(event)

    async def _next_event(self) -> Event:
        deadline = self._state.deadline
        if deadline is None:
            return await self._events.get()
        try:
            left_s = max(0.0, deadline - time.monotonic())
            return await asyncio.wait_for(self._events.get(), left_s)
        except TimeoutError:
            return lifecycle.Tick(time.monotonic())

    def _on_defect(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A defect of ours in a callback: better a loud end than a supervisor that sees half."""
        loop.default_exception_handler(context)
        failure = Failure("defect", f"defect in the supervisor: {context['message']}", exit_code=1)
        self._state = give_up(self._state, time.monotonic(), failure)
        self._post(lifecycle.Tick(time.monotonic()))

    async def _turn(self, event: Event) -> None:
        before = self._state
        self._state, actions = step(before, event, self._policy)
        if words := transition_words(before, self._state, event):
            logs.note(self._instance.log_path, words)
        for action in actions:
            self._perform(action)
        moved = self._state.phase is not before.phase
        if moved or (isinstance(event, lifecycle.Progress) and self._progress_due()):
            await self._announce()

    def _progress_due(self) -> bool:
        now = time.monotonic()
        if now - self._progress_at < _PROGRESS_PERIOD_S:
            return False
        self._progress_at = now
        return True

    async def _announce(self) -> None:
        with suppress(OSError):  # a full disk must not stop supervision
            write_record(self._instance, self.record())
        async with self._changed:
            self._version += 1
            self._changed.notify_all()

    def _perform(self, action: Action) -> None:
        match action:
            case Action.SPAWN:
                self._spawn()
            case Action.CAPTURE if self._child:
                self._child.signal(signal.SIGUSR1)
            case Action.TERM if self._child:
                self._child.signal_group(signal.SIGTERM)
            case Action.KILL if self._child:
                self._child.signal_group(signal.SIGKILL)
            case _:
                pass

    # -- the child -------------------------------------------------------------------------------

    def _spawn(self) -> None:
        number = self._state.child
        self._report, self._progress, self._watch = None, None, None
        try:
            child = Child.start(
                number,
                self._instance,
                environment=self._environment,
                drain_s=self._policy.drain_s,
            )
        except OSError as err:
            failure = Failure("cannot start", f"the server could not be started: {err}")
            self._post(lifecycle.Exited(time.monotonic(), number, failure))
            return
        oom.set_score(child.process.pid, self._child_score)
        self._child = child
        loop = asyncio.get_running_loop()
        loop.add_reader(child.pipe.fd, self._on_pipe, child)
        loop.add_reader(child.pidfd, self._on_exit, child)

    def _on_pipe(self, child: Child) -> None:
        fd = child.pipe.fd
        messages = child.pipe.read()
        if child.pipe.closed:
            asyncio.get_running_loop().remove_reader(fd)
        for message in messages:
            self._on_message(child.number, message)

    def _on_message(self, number: int, message: Message) -> None:
        now = time.monotonic()
        match message:
            case LoadProgress():
                self._progress = message
                self._post(lifecycle.Progress(now, number, message.words))
            case Serving(url):
                self._url = url
                task = asyncio.create_task(self._accept(number))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case Report():
                self._report = message

    async def _accept(self, number: int) -> None:
        """The child says it serves: believe it when it is on the GPU it was given."""
        child, gpu = self._child, self._plan.gpu
        if gpu is not None and child is not None:
            snapshot = await asyncio.to_thread(self._nvml)
            ours = set(session_members(child.process.pid))
            found = placement.judge(snapshot, gpu.uuid, ours)
            logs.note(self._instance.log_path, f"placement {found.where}: {found.words}")
            if found.where is placement.Where.ELSEWHERE:
                failure = misplaced(found.words)
                self._post(lifecycle.Stalled(time.monotonic(), number, failure))
                return
        now = time.monotonic()
        self._watch = Watch.start(now)
        self._post(lifecycle.Ready(now, number))

    def _on_exit(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(child.pidfd)
        if not child.pipe.closed:
            loop.remove_reader(child.pipe.fd)
            for message in child.pipe.read():
                self._on_message(child.number, message)
            child.pipe.close()
        kills = self._oom.kills_of(child.process.pid)
        code = child.reap()
        for stray in owned.end_strays(self._instance.folder, limit_s=0):
            logs.note(self._instance.log_path, f"process {stray.pid} of the server is left")
        self._child, self._watch = None, None
        ending = Ending(
            code,
            kills.kills if kills else None,
            kills.source if kills else "",
            self._report,
            tuple(logs.tail(self._instance.log_path, 20)),
        )
        failure = self._seen_waking(classify(ending))
        self._post(lifecycle.Exited(time.monotonic(), child.number, failure))

    def _seen_waking(self, failure: Failure) -> Failure:
        return lost_in_sleep(failure) if self._plan.gpu and self._pulses.waking else failure

    # -- the watchdog ----------------------------------------------------------------------------

    async def _watch_forever(self) -> None:
        while True:
            await asyncio.sleep(self._policy.poll_s)
            self._oom.look()
            if logs.rotate(self._instance.log_path) and self._child:
                self._child.signal(signal.SIGHUP)
            child, watch = self._child, self._watch
            if self._state.phase is not Phase.READY or child is None or watch is None:
                continue
            seen = await self._pulses.read(self._url, watch)
            if self._child is not child or self._watch is not watch:
                continue  # the answer is about a child that is gone
            now = time.monotonic()
            self._watch = judge(watch, seen, now, self._policy)
            if self._watch.health is Health.STALLED:
                failure = self._seen_waking(stalled(self._watch.words))
                self._post(lifecycle.Stalled(now, child.number, failure))
