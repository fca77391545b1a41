"""Asks a serving child for its pulse over HTTP, and now and then for one real token.

A gauge can read zero while the engine is wedged, so a long idle stretch, or a wake-up from suspend,
is followed by a canary: one generated token. It counts as work, so a canary that hangs is seen by
the same rule as a user's request that hangs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx

from glm53ctl.plan import Plan
from glm53ctl.supervisor.access import auth_headers
from glm53ctl.supervisor.lifecycle import Policy
from glm53ctl.supervisor.watchdog import Pulse, Silence, Watch, parse_pulse

_SUSPEND_S = 30.0  # boot time this far ahead of running time since the last look: we were asleep
_WAKING_S = 300.0  # a failure this soon after waking has to do with it


class PulseReader:
    """Reads /stats of one server, whatever child serves it."""

    def __init__(
        self, plan: Plan, policy: Policy, time_asleep_s: Callable[[], float] | None = None
    ) -> None:
        self._plan = plan
        self._policy = policy
        self._time_asleep_s = time_asleep_s or _time_asleep_s
        self._canary: asyncio.Task[None] | None = None
        self._canary_at = time.monotonic()
        self._asleep_s = self._time_asleep_s()
        self._woke_at: float | None = None

    @property
    def waking(self) -> bool:
        """True for some minutes after the machine was suspended."""
        return self._woke_at is not None and time.monotonic() - self._woke_at < _WAKING_S

    async def read(self, url: str, watch: Watch) -> Pulse | Silence:
        """One observation; takes at most the policy's `silent_s`. Starts a canary when one is due."""
        now = time.monotonic()
        idle_since = max(watch.busy_at, self._canary_at)
        idle = not watch.working and now - idle_since >= self._policy.canary_idle_s
        if self._woke(now) or idle:
            self._start_canary(url, now)
        limit_s = max(1.0, self._policy.silent_s / 4)
        try:
            async with _client(limit_s) as http:
                answer = await http.get(f"{url}/stats", headers=auth_headers(self._plan))
                stats: Any = answer.json()
        except httpx.ConnectError:
            return Silence(refused=True)
        except (httpx.HTTPError, ValueError):
            return Silence(refused=False)
        return parse_pulse(stats) or Silence(refused=False)

    def _woke(self, now: float) -> bool:
        """True on the first look after a suspend."""
        before, self._asleep_s = self._asleep_s, self._time_asleep_s()
        woke = self._asleep_s - before > _SUSPEND_S
        if woke:
            self._woke_at = now
        return woke

    def _start_canary(self, url: str, now: float) -> None:
        if self._canary is None or self._canary.done():
            self._canary_at = now
            self._canary = asyncio.create_task(self._generate_one(url))

    async def _generate_one(self, url: str) -> None:
        """One greedy token. Its outcome is read from /stats, not from the answer."""
        body = {
            "model": self._plan.model.served_name,
            "prompt": "1",
            "max_tokens": 1,
            "temperature": 0,
        }
        with suppress(httpx.HTTPError):
            async with _client(None) as http:
                await http.post(
                    f"{url}/v1/completions", json=body, headers=auth_headers(self._plan)
                )


def _client(limit_s: float | None) -> httpx.AsyncClient:
    """A client without proxies, and without loading certificates that plain HTTP has no use for."""
    return httpx.AsyncClient(trust_env=False, verify=False, timeout=limit_s)


def _time_asleep_s() -> float:
    """How long this machine has been suspended since boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
