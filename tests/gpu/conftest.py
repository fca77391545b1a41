"""GPU tests: run with `make test-gpu`; elsewhere they are skipped, counted and said so.

They need an NVIDIA GPU, libglm53_cuda.so (`make kernels` where nvcc is) and exllamav3 1.5.1. With
`-m gpu` a missing GPU is an error: a green run of that command means that they ran.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

ROOT = Path(__file__).resolve().parents[2]
for folder in ("bench", "reference", "tests/native"):
    sys.path.insert(0, str(ROOT / folder))

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # other people's import-time warnings are not our failures
    import torch

if TYPE_CHECKING:
    from gpu_rig import Rig

    from glm53_kernels.cuda import CudaKernels
    from glm53_server.engine.exl3_model import LoadedModel, LoadOptions

HERE = Path(__file__).parent
TIMEOUT_S = 900  # the first load on a machine compiles Triton kernels
SKIPPED = pytest.StashKey[int]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    for item in ours:
        item.add_marker(pytest.mark.gpu)
        item.add_marker(pytest.mark.timeout(TIMEOUT_S))
        item.add_marker(pytest.mark.filterwarnings("default"))
    if torch.cuda.is_available():
        return
    if config.option.markexpr == "gpu":
        raise pytest.UsageError("no CUDA device: `make test-gpu` needs an NVIDIA GPU")
    config.stash[SKIPPED] = len(ours)
    for item in ours:
        item.add_marker(pytest.mark.skip(reason="no CUDA device: run `make test-gpu` on one"))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if skipped := config.stash.get(SKIPPED, 0):
        terminalreporter.write_line(
            f"{skipped} GPU tests were NOT run: no CUDA device", yellow=True
        )


@pytest.fixture(scope="session")
def kernels() -> CudaKernels:
    from glm53_kernels.cuda import CudaKernels

    return CudaKernels()


@pytest.fixture
def make_rig(kernels: CudaKernels) -> Iterator[Callable[..., Rig]]:
    """make(name of a layout, slots): a residency beside its model."""
    from gpu_rig import LAYOUTS, Rig

    rigs: list[Rig] = []

    def make(name: str = "tiny", slots: int = 10) -> Rig:
        rigs.append(Rig(kernels, LAYOUTS[name], slots))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


@pytest.fixture(scope="session")
def tiny_options() -> LoadOptions:
    from gpu_harness import TINY

    from glm53_server.engine.exl3_model import LoadOptions

    return LoadOptions(directory=TINY, cache_tokens=16384, max_batch=4, chunk_tokens=2048)


@pytest.fixture(scope="session")
def stock(tiny_options: LoadOptions) -> Iterator[LoadedModel]:
    """Stock exllamav3 with every expert in VRAM: what everything is compared with."""
    from gpu_harness import load

    loaded, _ = load(tiny_options, tiered=False)
    yield loaded
    loaded.model.unload()
