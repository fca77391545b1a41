"""One loaded CPU engine on the tiny checkpoint for all tests of this folder."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cpu_driver import REFERENCE, Driver, tiny_plan

from glm53_server.engine import cpu


@pytest.fixture(scope="session")
def tiny() -> Iterator[Driver]:
    driver = Driver(cpu.load(tiny_plan(), lambda *_: None))
    yield driver
    driver.run(driver.engine.close())


@pytest.fixture(scope="session")
def panel() -> list[dict[str, Any]]:
    """Greedy generations by stock exllamav3 with the top 20 of every position."""
    return json.loads((REFERENCE / "tiny-ref-panel.json").read_text())
