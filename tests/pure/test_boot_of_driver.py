"""At boot the driver may come up later than we do; on any other day nothing is waited for."""

from __future__ import annotations

import json
import threading
import time

import pytest
from recorded_machines import gpu, put, record

from glm53ctl import boot

ABSENT = {"problem": "not_loaded", "detail": "Driver Not Loaded"}


def machine(folder, *, uptime: str | None, card: bool = True):
    system = record(folder, nvml=ABSENT)
    if card:
        put(folder, "/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
        put(folder, "/sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n")
    if uptime is not None:
        put(folder, "/proc/uptime", uptime)
    return system


def test_T067_a_driver_that_comes_up_late_is_waited_for(tmp_path):
    system = machine(tmp_path, uptime="21.50 80.11\n")
    said: list[str] = []
    ready = json.dumps({"driver": "580.95", "cuda": 13000, "gpus": [gpu()]})
    timer = threading.Timer(0.6, put, (tmp_path, "/nvml.json", ready))
    timer.start()
    started = time.monotonic()
    assert boot.wait_for_driver(system, said.append, limit_s=20)
    assert 0.5 < time.monotonic() - started < 10
    timer.join()
    assert "has just booted" in said[0]
    assert not boot.wait_for_driver(system, said.append)
    assert len(said) == 1


def test_T067_the_wait_has_an_end(tmp_path):
    system = machine(tmp_path, uptime="21.50 80.11\n")
    assert boot.wait_for_driver(system, lambda _: None, limit_s=0.6)


@pytest.mark.parametrize(
    ("uptime", "card"), [("4000.0 1.0\n", True), ("21.5 1.0\n", False), (None, True), ("", True)]
)
def test_nothing_is_waited_for_on_any_other_day(tmp_path, uptime, card):
    system = machine(tmp_path, uptime=uptime, card=card)
    assert not boot.wait_for_driver(system, lambda _: None, limit_s=60)
