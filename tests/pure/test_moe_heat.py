"""What the server reads of the device's counts: the arithmetic of the kernels, and files that hold it."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "reference"))
from cache_model import MOST_HEAT
from cache_model import aged as aged_in_the_model

from glm53_server.moe import heat


def words(values: list[int]) -> torch.Tensor:
    """Unsigned words as the device's int32."""
    return torch.tensor(values, dtype=torch.int64).to(torch.uint32).view(torch.int32)


def test_heat_is_aged_as_the_kernels_age_it():
    chance = random.Random(4)
    now = 2**32 - 5
    ages = [*range(200), *(63 * 64, 64 * 64, 10**6, 2**31, 2**32 - 1)] * 3
    values = [chance.choice([0, 1 << 16, MOST_HEAT, chance.randrange(MOST_HEAT)]) for _ in ages]
    for step in (now, 3):  # counts of steps may wrap
        last = words([(step - age) % 2**32 for age in ages])
        found = heat.aged(words(values), last, torch.tensor([step]))
        expected = [aged_in_the_model(value, age) for value, age in zip(values, ages, strict=True)]
        assert found.tolist() == expected


def test_a_file_gives_back_what_was_saved(tmp_path):
    path = tmp_path / "deep" / "heat.bin"
    values = torch.tensor([0, 1, 65536, MOST_HEAT])
    heat.save(path, values)
    found = heat.load(path, 4)
    assert found is not None
    assert (found.tolist(), found.dtype) == (values.tolist(), torch.int32)
    assert [p.name for p in path.parent.iterdir()] == ["heat.bin"]
    heat.save(path, values * 0)
    again = heat.load(path, 4)
    assert again is not None
    assert again.tolist() == [0] * 4


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        bytes(16),  # plain counts, as they were written once
        heat.MAGIC + bytes(12),
        heat.MAGIC + bytes(20),
        heat.MAGIC[:-1] + b"?" + bytes(16),
    ],
)
def test_a_file_of_another_kind_or_model_is_passed_over(tmp_path, content):
    path = tmp_path / "heat.bin"
    if content is not None:
        path.write_bytes(content)
    assert heat.load(path, 4) is None


def test_a_damaged_count_is_no_negative_heat(tmp_path):
    path = tmp_path / "heat.bin"
    path.write_bytes(heat.MAGIC + b"\xff" * 16)
    found = heat.load(path, 4)
    assert found is not None
    assert found.tolist() == [0] * 4
