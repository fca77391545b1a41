"""The `stage` fixture: one private instance, stopped by force after the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stage import Stage

from glm53ctl import client


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    client.stop(made.instance, 0.0, force=True)
