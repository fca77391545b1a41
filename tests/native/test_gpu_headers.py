"""What the GPU's expert kernels share with plain C++: where symbols are, and which picks make a run."""

from __future__ import annotations

import ctypes
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from glm53_kernels.cuda import COPY_BOX_BYTES, MAX_COPIES
from glm53_kernels.cuda_experts import MOST_RUNS, MOST_SLICES, RUN_LIST_BYTES, RUN_ROWS

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "kernels" / "csrc"
RESIDENT, ARRIVING, ELSEWHERE = 0, 1, 2
# codebook_pair of band.cuh is given these symbols of a lane for each of the four operand registers.
SYMBOLS_OF_REGISTER = ((0, 1), (4, 5), (2, 3), (6, 7))


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("headers") / "headers.so"
    command = [
        "g++",
        "-std=c++20",
        "-O1",
        "-shared",
        "-fPIC",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{CSRC}",
    ]
    subprocess.run([*command, str(HERE / "gpu_headers.cpp"), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


@pytest.mark.parametrize("bits", range(1, 9))
def test_a_lane_reads_the_same_states_as_the_cpu(headers: ctypes.CDLL, bits: int) -> None:
    tile = np.random.default_rng(bits).integers(0, 256, 32 * bits, dtype=np.uint8)
    at = ctypes.c_void_p(tile.ctypes.data)
    for symbol in range(256):
        assert headers.lane_state(at, bits, symbol) == headers.cpu_state(at, bits, symbol)


def test_a_lane_holds_what_the_matrix_instruction_wants_from_it(headers: ctypes.CDLL) -> None:
    for lane in range(32):
        for register, symbols in enumerate(SYMBOLS_OF_REGISTER):
            for half, symbol in enumerate(symbols):
                t = 8 * lane + symbol
                assert headers.operand_row(lane, register) == headers.output_of(t)
                assert headers.operand_column(lane, register, half) == headers.input_of(t)


def test_the_bindings_allocate_what_the_kernels_use(headers: ctypes.CDLL) -> None:
    assert headers.list_bytes() == RUN_LIST_BYTES
    assert (headers.most_runs(), headers.run_rows()) == (MOST_RUNS, RUN_ROWS)
    assert headers.most_slices() == MOST_SLICES
    assert headers.box_bytes() <= COPY_BOX_BYTES
    assert headers.copy_jobs() == MAX_COPIES


def runs_of(
    headers: ctypes.CDLL, expert: list[int], place: list[int], rows: int
) -> tuple[list, list]:
    """(runs of residents, runs of arriving ones) as (expert, picks)."""
    out = np.zeros(RUN_LIST_BYTES // 4, np.int32)
    experts, places = np.array(expert, np.int32), np.array(place, np.int32)
    headers.list(*(ctypes.c_void_p(a.ctypes.data) for a in (experts, places)), len(expert), rows,
                 ctypes.c_void_p(out.ctypes.data))  # fmt: skip
    table = out[2 : 2 + MOST_RUNS * (2 + RUN_ROWS)].reshape(MOST_RUNS, 2 + RUN_ROWS)
    runs = [(int(row[0]), row[2 : 2 + row[1]].tolist()) for row in table]
    return runs[: out[0]], runs[out[0] : out[0] + out[1]]


def test_every_pick_on_the_gpu_is_in_one_run(headers: ctypes.CDLL) -> None:
    chance = random.Random(4)
    for _ in range(400):
        rows, per_row = chance.randint(1, 8), chance.randint(1, 8)
        n = rows * per_row
        expert = [chance.randrange(-1, 12) for _ in range(n)]
        where = {e: chance.choice([RESIDENT, ARRIVING, ELSEWHERE]) for e in range(12)} | {
            -1: ELSEWHERE
        }
        place = [where[e] for e in expert]
        resident, arriving = runs_of(headers, expert, place, rows)
        for runs, wanted in ((resident, RESIDENT), (arriving, ARRIVING)):
            assert sorted(i for _, picks in runs for i in picks) == [
                i for i in range(n) if place[i] == wanted
            ]
            assert all(expert[i] == e for e, picks in runs for i in picks)
            assert all(1 <= len(picks) <= rows for _, picks in runs)
            distinct = {expert[i] for i in range(n) if place[i] == wanted}
            most = {e: -(-expert.count(e) // rows) for e in distinct}
            assert len(runs) == sum(most.values()), (
                "an expert's weights are read more often than need be"
            )
