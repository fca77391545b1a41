"""Which checkpoint a name means, and the sizes of weights made in memory."""

from __future__ import annotations

import pytest
from test_planner_machines import GIB, consider, hardware

from glm53ctl.checkpoint import FLASH
from glm53ctl.env import Environ, Settings
from glm53ctl.errors import ArtifactError, BadModel, UsageError
from glm53ctl.model_source import dummy_facts, find_model
from glm53ctl.paths import user_paths


@pytest.fixture
def paths(tmp_path):
    return user_paths(Environ({"HOME": str(tmp_path)}))


def test_tiny_is_bundled_and_inspected(paths):
    found = find_model(Settings(model="tiny"), paths)
    assert found.present
    assert found.facts.name == "tiny"
    assert 0 < found.facts.expert_total_bytes < 100 << 20


def test_a_missing_flash_has_known_sizes_and_a_place(paths):
    found = find_model(Settings(), paths)
    assert not found.present
    assert found.facts == FLASH
    assert found.path.startswith(str(paths.models_dir))


def test_names_and_directories_that_are_no_checkpoint(paths, tmp_path):
    with pytest.raises(ArtifactError, match="there is no model 'glm-6'"):
        find_model(Settings(model="glm-6"), paths)
    with pytest.raises(ArtifactError, match="there is no model 'aaaa"):
        find_model(Settings(model="a" * 5000), paths)
    with pytest.raises(ArtifactError, match="there is no directory '~nobody-here/m'"):
        find_model(Settings(model="~nobody-here/m"), paths)
    with pytest.raises(BadModel, match="cannot read /aaaa"):
        find_model(Settings(model="/" + "a" * 5000), paths)
    with pytest.raises(BadModel, match=r"config\.json"):
        find_model(Settings(model=str(tmp_path)), paths)


def test_dummy_weights_have_the_sizes_of_the_real_ones():
    assert dummy_facts("dummy") == FLASH


def test_fewer_layers_and_experts_need_less():
    small = dummy_facts("dummy:layers=8,experts=64")
    assert (small.layers, small.moe_layers, small.experts) == (8, 5, 64)
    assert small.expert_bytes == FLASH.expert_bytes
    assert small.expert_total_bytes == 5 * 64 * FLASH.expert_bytes
    assert small.resident_bytes < FLASH.resident_bytes / 2
    machine = hardware(32 * GIB, 24 * GIB)
    assert consider(machine).plan is None
    assert consider(machine, small, load_format="dummy:layers=8,experts=64").plan is not None


@pytest.mark.parametrize(
    "text",
    [
        "dumy",
        "dummy:layers",
        "dummy:layers=0",
        "dummy:layers=²",
        "dummy:moe=" + "9" * 5000,
        "dummy:layers=99999999999",
        "dummy:depth=3",
        "",
    ],
)
def test_load_formats_that_do_not_exist_are_refused(text):
    with pytest.raises(UsageError, match="is not checkpoint or dummy"):
        dummy_facts(text)


def test_dummy_weights_are_not_for_the_cpu():
    outcome = consider(
        hardware(512 * GIB, None), dummy_facts("dummy"), mode="cpu", load_format="dummy"
    )
    assert outcome.rejections[0].reason == "weights made in memory need a GPU mode"
