"""Dummy models: what may be asked for, what the folder looks like, and that values never change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from glm53_server.engine import exl3_dummy
from glm53_server.engine.exl3_dummy import (
    DTYPES,
    DummySpec,
    DummyValues,
    TensorSpec,
    write_directory,
)
from glm53ctl.checkpoint import FLASH, facts, open_checkpoint

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "reference" / "tiny"


@pytest.mark.parametrize(
    ("load_format", "spec"),
    [
        ("dummy", DummySpec()),
        ("dummy:layers=8", DummySpec(layers=8)),
        ("dummy:layers=5,experts=16", DummySpec(layers=5, experts=16)),
        ("dummy:experts=4,hidden=256,moe=128,layers=4", DummySpec(4, 4, 256, 128)),
        ("auto", None),
        ("safetensors", None),
        ("dummyish", None),
    ],
)
def test_load_formats(load_format: str, spec: DummySpec | None) -> None:
    assert DummySpec.parse(load_format) == spec


@pytest.mark.parametrize(
    "load_format",
    ["dummy:8", "dummy:depth=8", "dummy:layers=", "dummy:layers=-1", "dummy:layers=8x", "dummy:layers=8;experts=4"],
)  # fmt: skip
def test_a_wrong_load_format_is_named_with_what_may_be_said(load_format: str) -> None:
    with pytest.raises(
        ValueError, match=r"is not one of layers, experts, hidden, moe=N"
    ) as refused:
        DummySpec.parse(load_format)
    assert load_format in str(refused.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, TensorSpec]]:
    into = tmp_path_factory.mktemp("dummy")
    return into, write_directory(DummySpec(layers=5, experts=288), into, TINY)


def test_the_folder_is_a_checkpoint_to_everybody(
    folder: tuple[Path, dict[str, TensorSpec]],
) -> None:
    path, tensors = folder
    checkpoint = open_checkpoint(path)
    assert set(checkpoint.tensors) == set(tensors)
    for name, entry in checkpoint.tensors.items():
        assert (entry.dtype, tuple(entry.shape)) == (tensors[name].dtype, tensors[name].shape)
    found = facts(checkpoint)
    assert (found.layers, found.moe_layers) == (5, 2)
    assert found.experts == FLASH.experts == 288
    assert found.expert_bytes == FLASH.expert_bytes
    assert found.expert_total_bytes == 2 * 288 * FLASH.expert_bytes
    assert (found.hidden, found.moe_intermediate) == (FLASH.hidden, FLASH.moe_intermediate)
    assert (found.vocab_size, found.experts_per_token) == (
        FLASH.vocab_size,
        FLASH.experts_per_token,
    )


def test_the_folder_takes_no_space(folder: tuple[Path, dict[str, TensorSpec]]) -> None:
    stat = (folder[0] / "model.safetensors").stat()
    assert stat.st_size > 5 << 30
    assert stat.st_blocks * 512 < 64 << 20


@pytest.fixture
def small_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exl3_dummy, "POOL_BYTES", 1 << 20)
    monkeypatch.setattr(exl3_dummy, "POOL_NORMALS", 1 << 14)


SPECS = {
    spec.name: spec
    for spec in (
        TensorSpec("a.trellis", "I16", (16, 8, 48), "bits"),
        TensorSpec("b.trellis", "I16", (16, 8, 48), "bits"),
        TensorSpec("large.trellis", "I16", (64, 256, 48), "bits"),
        TensorSpec("a.suh", "F16", (256,), "sign"),
        TensorSpec("a.svh", "F16", (128,), "sign", 0.0625),
        TensorSpec("a.mul1", "I32", (), "marker"),
        TensorSpec("norm", "BF16", (64,), "const"),
        TensorSpec("zero", "F32", (24,), "const", 0.0),
        TensorSpec("gate", "F16", (16, 64), "normal", 0.125),
        TensorSpec("embed", "BF16", (512, 64), "normal"),
    )
}


@pytest.mark.usefixtures("small_pools")
def test_values_depend_on_the_name_only() -> None:
    one, same = DummyValues(SPECS), DummyValues(dict(reversed(SPECS.items())))
    for name, spec in SPECS.items():
        value = one.tensor(name)
        assert (value.dtype, tuple(value.shape)) == (DTYPES[spec.dtype], spec.shape)
        assert torch.equal(value.flatten().view(torch.uint8), same.tensor(name).flatten().view(torch.uint8))  # fmt: skip
    assert not torch.equal(one.tensor("a.trellis"), one.tensor("b.trellis"))


@pytest.mark.usefixtures("small_pools")
def test_values_are_what_their_kind_says() -> None:
    values = DummyValues(SPECS)
    assert int(values.tensor("a.mul1")) & 0xFFFFFFFF == 0x83DCD12D
    assert set(values.tensor("a.suh").tolist()) == {-1.0, 1.0}
    assert set(values.tensor("a.svh").tolist()) == {-0.0625, 0.0625}
    assert (values.tensor("norm") == 1).all()
    assert (values.tensor("zero") == 0).all()
    assert float(values.tensor("gate").float().std()) == pytest.approx(0.125, rel=0.2)
    assert values.tensor("large.trellis").unique().numel() > 50_000


@pytest.mark.usefixtures("small_pools")
def test_the_arena_gets_the_bytes_that_the_loader_would() -> None:
    values = DummyValues(SPECS)
    for name in ("a.trellis", "large.trellis"):
        tensor = values.tensor(name)
        raw = values.trellis_bytes(name, tensor.numel() * 2)
        assert torch.equal(raw, tensor.flatten().view(torch.uint8))
