"""The API key: in a private file, from the environment or made up, and never in a plan (T-070)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_planner_machines import GIB, consider, hardware

from glm53ctl.api_key import ensure_api_key
from glm53ctl.env import Environ
from glm53ctl.errors import UsageError


@pytest.fixture
def plan(tmp_path):
    found = consider(hardware(256 * GIB, 24 * GIB), host="0.0.0.0").chosen()
    file = tmp_path / "state/default/api-key"
    return replace(found, listen=replace(found.listen, api_key_file=str(file))), file


def test_a_key_is_made_once_and_kept(plan):
    wanted, file = plan
    assert ensure_api_key(wanted, Environ({}), own_folder=file.parent)
    first = file.read_text()
    assert len(first.strip()) >= 32
    assert file.stat().st_mode & 0o777 == 0o600
    assert not ensure_api_key(wanted, Environ({}), own_folder=file.parent)
    assert file.read_text() == first


def test_T070_a_key_of_the_environment_goes_to_the_file_and_not_into_the_plan(plan):
    wanted, file = plan
    environ = Environ({"GLM53_API_KEY": "sk-sentinel-1"})
    assert not ensure_api_key(wanted, environ, own_folder=file.parent)
    assert file.read_text() == "sk-sentinel-1\n"
    assert "sk-sentinel-1" not in wanted.to_json()
    file.chmod(0o644)
    ensure_api_key(wanted, environ, own_folder=file.parent)
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_the_user_named_is_never_written(plan, tmp_path):
    wanted, file = plan
    with pytest.raises(UsageError, match="does not exist"):
        ensure_api_key(wanted, Environ({"GLM53_API_KEY": "x"}), own_folder=tmp_path)
    assert not file.exists()


def test_on_loopback_no_key_is_needed(plan, tmp_path):
    wanted, _ = plan
    local = replace(wanted, listen=replace(wanted.listen, api_key_file=None))
    assert not ensure_api_key(local, Environ({}), own_folder=tmp_path)
