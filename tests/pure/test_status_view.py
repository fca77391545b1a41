"""What `status` and `up` show, and the exit code of `status`, from records alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glm53ctl import traffic
from glm53ctl.env import GIB
from glm53ctl.hardware import Measured
from glm53ctl.host_use import HostUse, lines
from glm53ctl.plan import ListenPlan
from glm53ctl.render import Look
from glm53ctl.start_view import amount, duration
from glm53ctl.status_view import document, exit_code, exposure, status_lines, tokens_per_s

PLAIN = Look(colour=False, unicode=False, live=False)
SERVING = {
    "instance": "default",
    "phase": "ready",
    "phase_s": 15120.0,
    "health": "ok",
    "health_words": "working",
    "model": "glm-5.3-flash",
    "mode": "fast",
    "url": "http://127.0.0.1:8080",
    "restarts": 2,
    "crashes": 0,
    "retry_in_s": None,
    "progress": None,
    "last_failure": None,
    "exit_code": None,
}
CRASH = {
    "kind": "out of memory",
    "summary": "killed by the kernel's OOM killer",
    "proof": "memory.events oom_kill rose by 1",
    "hint": "plan less",
    "exit_code": 8,
}
STATS = {
    "running": 1,
    "queued": 0,
    "requests": 7,
    "completion_tokens": 120,
    "cpu": {"threads": 2, "isa": "avx2", "layers": [1, 2]},
}


def shown(record: dict, stats: dict | None = None, rate: float | None = None) -> list[str]:
    return list(status_lines(record, stats, rate, PLAIN))


def test_serving():
    assert shown(SERVING, STATS, 14.13) == [
        "default  * serving 4h12m  glm-5.3-flash  fast  http://127.0.0.1:8080/v1  restarts 2",
        "  now      1 running, 0 queued · 14.1 tok/s",
        "  total    7 requests, 120 completion tokens",
        "  cpu      threads 2, isa avx2",
    ]
    tiers = {"expert_cache": [{"slots": 1376, "hit_rate": 0.712, "picks_hist": [1]}]}
    assert shown(SERVING, tiers)[-1] == "  expert_cache slots 1376, hit rate 71%"
    assert exit_code(SERVING) == 0


def test_who_reaches_the_port_is_said():
    assert exposure(ListenPlan()) is None
    assert exposure(ListenPlan(api_key_file="/k")) == "this machine only, key in /k"
    assert exposure(ListenPlan("0.0.0.0", api_key_file="/k")) == (
        "0.0.0.0: other machines reach it, key in /k"
    )
    assert "no key" in str(exposure(ListenPlan("192.168.1.2")))


def test_a_stalled_server_is_unhealthy():
    stalled = {**SERVING, "health": "stalled", "health_words": "no step for 73 s"}
    assert shown(stalled)[0].startswith("default  * stalled: no step for 73 s")
    assert shown(stalled)[1] == "  now      /stats does not answer"
    assert exit_code(stalled) == 9


def test_loading_shows_how_far_it_is():
    progress = {"phase": "experts", "done": 62 * 10**9, "total": 125 * 10**9}
    loading = {**SERVING, "phase": "starting", "phase_s": 21.0, "progress": progress}
    assert "starting 21s, experts 62.0/125.0 GB" in shown(loading)[0]
    assert exit_code(loading) == 0


def test_back_off_says_when_and_why():
    waiting = {**SERVING, "phase": "backoff", "retry_in_s": 4.0, "crashes": 2}
    lines = shown({**waiting, "last_failure": CRASH})
    assert lines[1:] == [
        "  retry    in 4 s, 2 crashes in a row",
        "  last     out of memory: killed by the kernel's OOM killer "
        "(proof: memory.events oom_kill rose by 1)",
        "  hint     plan less",
    ]


@pytest.mark.parametrize(
    ("phase", "failure", "code"),
    [("stopped", None, 3), ("failed", CRASH, 3), ("failed", {**CRASH, "exit_code": 9}, 9)],
)
def test_exit_codes_of_what_has_ended(phase: str, failure: dict | None, code: int):
    record = {**SERVING, "phase": phase, "health": None, "last_failure": failure}
    assert exit_code(record) == code
    assert document(record, None, None)["ok"] is False
    assert "http" not in shown(record)[0]


def test_tokens_per_s_needs_two_readings_of_one_server():
    first = {"completion_tokens": 100, "read_at_s": 10.0}
    later = {"completion_tokens": 130, "read_at_s": 12.0}
    assert tokens_per_s(first, later) == 15.0
    assert tokens_per_s(None, later) is None
    assert tokens_per_s(first, {"read_at_s": 12.0}) is None
    assert tokens_per_s(later, {"completion_tokens": 5, "read_at_s": 14.0}) is None


CACHE = {
    "slots": 1617, "slot_bytes": 9_700_000, "hits": 1000, "misses": 500, "decode_link_gb": 4.85,
    "hit_rate": 0.6667, "device": "cuda:0", "at_s": 5.0,
}  # fmt: skip
LATER = {**CACHE, "hits": 1710, "misses": 790, "decode_link_gb": 42.65, "at_s": 7.0}


def two_readings(**after: object) -> tuple[dict, dict]:
    first = {"expert_cache": [CACHE], "cpu_tier": {"cpu_experts": 100}, "read_at_s": 10.0}
    return first, {**first, "expert_cache": [LATER], "read_at_s": 12.0, **after}


def test_traffic_is_shown_beside_what_was_measured():
    first, later = two_readings(cpu_tier={"cpu_experts": 3100})
    found = traffic.between(first, later)
    assert found == traffic.Traffic(0.71, pytest.approx(18.9e9), pytest.approx(14.55e9))
    measured = Measured(h2d_bytes_per_s=25.2e9, tier_bytes_per_s=29.1e9)
    assert traffic.line(found, measured) == (
        "  tiers    VRAM hits 71% · link 18.9 of 25.2 GB/s (75%) · CPU tier 14.6 of 29.1 GB/s (50%)"
    )
    assert traffic.line(found, Measured()).endswith("link 18.9 GB/s · CPU tier 14.6 GB/s")


@pytest.mark.parametrize(
    "after",
    [{"expert_cache": [CACHE]}, {"expert_cache": [{**CACHE, "hits": 3}]}, {"expert_cache": []},
     {"expert_cache": [{"slots": 1}]}, {"expert_cache": None}, {"expert_cache": [{**LATER, "at_s": 5.0}]}],
)  # fmt: skip
def test_traffic_needs_two_readings_of_one_server_that_decodes(after: dict):
    assert traffic.between(*two_readings(**after)) is None
    assert traffic.between(None, two_readings()[1]) is None
    exact = traffic.between(*two_readings(cpu_tier=None))
    assert exact is not None
    assert exact.tier_bytes_per_s is None


def test_the_card_is_shown_with_its_heat_and_its_cap():
    use = HostUse(0, 0, 1, "RTX 3090", 1, 2, 64, 271.4, 280.0)
    assert list(lines(use))[-1] == "  GPU      64 °C, 271 of 280 W"
    assert list(lines(replace(use, power_limit_w=None)))[-1] == "  GPU      64 °C, 271 W"
    assert list(lines(replace(use, power_w=None)))[-1] == "  GPU      64 °C"


def test_memory_lines():
    use = HostUse(141 * GIB, 52 * GIB, 24, "RTX 3090", 21 * GIB, 24 * GIB)
    assert list(lines(use)) == [
        "  RAM      141.0 GiB ours in 24 threads, 52.0 GiB available",
        "  VRAM     21.0 GiB of 24.0 GiB used, RTX 3090",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0s"), (59.9, "59s"), (192, "3m12s"), (15120, "4h12m"), (277200, "3d05h")],
)
def test_durations(seconds: float, words: str):
    assert duration(seconds) == words


def test_amounts_are_counted_or_bytes():
    assert amount(12, 42) == "12/42"
    assert amount(1_300_000, 16_400_000) == "1.3/16.4 MB"
