"""`config set`: one key changes, everything else in the file stays."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm53ctl import profile
from glm53ctl.config_edit import set_value
from glm53ctl.env import Environ
from glm53ctl.errors import UsageError
from glm53ctl.paths import foreign_home

MINE = """# my machine
mode = "fast"   # the big one

[listen]
# the router forwards this
port = 9000
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "glm53/config.toml"
    path.parent.mkdir()
    path.write_text(MINE)
    return path


def test_an_existing_key_is_replaced_in_its_line(file):
    set_value(file, "listen.port", "9001")
    assert file.read_text() == MINE.replace("9000", "9001")


def test_a_new_key_goes_into_its_section_and_comments_stay(file):
    set_value(file, "listen.host", "0.0.0.0")
    set_value(file, "model.models_dir", "/mnt/nvme [1]")
    text = file.read_text()
    assert "# the router forwards this" in text
    assert tomllib.loads(text) == {
        "mode": "fast",
        "listen": {"port": 9000, "host": "0.0.0.0"},
        "model": {"models_dir": "/mnt/nvme [1]"},
    }


def test_a_key_can_be_removed_and_a_top_level_one_set(file):
    set_value(file, "listen.port", None)
    set_value(file, "instance", "second")
    assert tomllib.loads(file.read_text()) == {"instance": "second", "mode": "fast"}
    assert "# the router forwards this" in file.read_text()
    assert not set_value(file, "listen.port", None)


def test_what_set_adds_unset_takes_away(file):
    before = file.read_text()
    for key, value in (("listen.host", "::1"), ("cpu.threads", "3"), ("vram.stage_gib", "2")):
        assert set_value(file, key, value)
    for key in ("cpu.threads", "listen.host", "vram.stage_gib"):
        assert set_value(file, key, None)
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("text", "place"),
    [("garbage = [\n", 1), ("mode = 'fast'\n[listen\nport = 1\n", 2), ("[listen]\nport =\n", 2),
     ("a = 1\na = 2\n", 2), ('x = """\n\n', 2)],
)  # fmt: skip
@pytest.mark.parametrize("value", ["8080", None])
def test_a_file_that_cannot_be_parsed_is_not_touched(file, text, place, value):
    file.write_text(text)
    with pytest.raises(UsageError, match="not valid TOML") as caught:
        set_value(file, "listen.port", value)
    assert caught.value.message.startswith(f"{file}:{place}: ")
    assert caught.value.error_id == "CFG-005"
    assert f"mv {file} {file}.broken" in str(caught.value.hint)
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("text", "key"),
    [("listen = {port = 1}\n", "listen.port"), ("[doctor]\nignore = [\n 'GPU-001',\n]\n", "doctor.ignore"),
     ("[model]\nserved_name = \"\"\"\nname = 1\n\"\"\"\n", "model.name")],
)  # fmt: skip
def test_a_spelling_that_lines_cannot_change_is_refused_not_broken(file, text, key):
    file.write_text(text)
    with pytest.raises(UsageError, match="only an editor can change"):
        set_value(file, key, "7")
    assert file.read_text() == text


def test_a_header_is_found_in_any_spelling(file):
    file.write_text("[ listen ]  # mine\nport = 1\n")
    set_value(file, "listen.host", "::1")
    assert tomllib.loads(file.read_text()) == {"listen": {"port": 1, "host": "::1"}}


def test_the_file_is_made_for_its_owner_alone(tmp_path):
    file = tmp_path / "new/config.toml"
    set_value(file, "vram.reserve_gib", "1.5")
    assert tomllib.loads(file.read_text()) == {"vram": {"reserve_gib": 1.5}}
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [("listen.prot", "1", "did you mean 'listen.port'?"), ("port", "1", "did you mean 'listen.port'?"),
     ("listen.port", "many", "listen.port: port to listen on"), ("mode", "fsat", "did you mean 'fast'?"), ("listen.port", "", "remove it: glm53ctl config unset listen.port")],
)  # fmt: skip
def test_what_would_not_load_is_not_written(file, key, value, hint):
    with pytest.raises(UsageError) as caught:
        set_value(file, key, value)
    assert caught.value.hint == hint
    assert file.read_text() == MINE


def test_every_type_is_spelt_as_toml(file):
    for key, value in (
        ("cpu.swizzled", "0"),
        ("doctor.ignore", "GPU-001, GPU-002"),
        ("vram.stage_gib", "2.6"),
    ):
        set_value(file, key, value)
    found = tomllib.loads(file.read_text())
    assert found["cpu"] == {"swizzled": False}
    assert found["doctor"] == {"ignore": ["GPU-001", "GPU-002"]}
    assert found["vram"] == {"stage_gib": 2.6}


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30).filter(str.strip))
@settings(deadline=None)  # it writes files
def test_any_text_survives_the_file(tmp_path_factory, text):
    file = tmp_path_factory.mktemp("config") / "config.toml"
    set_value(file, "model.served_name", text)
    found = profile.load({}, environ=Environ({"HOME": "/nonexistent", "GLM53_CONFIG": str(file)}))
    assert found.settings.served_name == text


def test_root_through_sudo_does_not_write_into_a_users_home(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    sudo = Environ({"HOME": str(home), "SUDO_USER": "ada"})
    file = home / ".config/glm53/config.toml"
    assert foreign_home(sudo, Path("/proc/self/x"), user_id=1000) is None
    assert foreign_home(Environ({}), file, user_id=0) is None
    if os.geteuid() == 0:
        os.chown(home, 1000, 1000)
    assert foreign_home(sudo, file, user_id=0) == "ada"
