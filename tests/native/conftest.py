"""Native tests run on the built library, or on the one named by NATIVE_LIBRARY (a sanitizer build)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glm53_kernels import CpuKernels, Unsupported

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "reference"))


def pytest_report_header() -> str:
    return f"native library: {os.environ.get('NATIVE_LIBRARY', 'as built')}"


@pytest.fixture
def library() -> Path | None:
    path = os.environ.get("NATIVE_LIBRARY")
    return Path(path) if path else None


@pytest.fixture
def open_kernels(library: Path | None) -> Iterator[Callable[..., CpuKernels]]:
    """Opens kernels with the given arguments; skips an instruction set this CPU lacks; closes them."""
    opened: list[CpuKernels] = []

    def open_(**arguments: object) -> CpuKernels:
        try:
            opened.append(CpuKernels(library=library, **arguments))  # pyright: ignore[reportArgumentType]
        except Unsupported as lacking:
            pytest.skip(str(lacking))
        return opened[-1]

    yield open_
    for kernels in opened:
        kernels.close()
