"""Settings: layers, origins, and what a typo leads to (T-112, T-119, D-06)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm53ctl import env, profile
from glm53ctl.env import GIB, Environ, Settings
from glm53ctl.errors import UsageError
from glm53ctl.plan import Mode


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


def environ(home: Path, **values: str) -> Environ:
    return Environ({"HOME": str(home), **values})


def user_file(home: Path, text: str) -> Path:
    file = home / ".config/glm53/config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def test_later_layers_win_and_every_key_knows_its_layer(home, tmp_path):
    custom = tmp_path / "mine.toml"
    custom.write_text(
        'mode = "fast"\n[listen]\nport = 1001\nhost = "::1"\n[limits]\nmax_batch = 2\n'
    )
    file = user_file(home, "[listen]\nport = 1002\n[limits]\nmax_queued = 9\n")
    found = profile.load(
        {"port": 1004},
        environ=environ(home, GLM53_PORT="1003", GLM53_MAX_QUEUED="8"),
        profile=str(custom),
    )
    assert (found.settings.port, found.settings.max_queued) == (1004, 8)
    assert (found.settings.max_batch, found.settings.mode) == (2, Mode.FAST)
    assert found.origin("listen.port") == "flag: --port"
    assert found.origin("limits.max_queued") == "environment: GLM53_MAX_QUEUED"
    assert found.origin("limits.max_batch") == f"profile: {custom}:6"
    assert found.origin("instance") == "default"
    without = profile.load({}, environ=environ(home))
    assert without.origin("listen.port") == f"user: {file}:2"


def test_names_of_the_deployment_guide_keep_working(home):
    found = profile.load(
        {},
        environ=environ(
            home,
            GLM53_MODE="exact",
            GLM53_CT_CPUS="0-7",
            GLM53_CT_THREADS="6",
            GLM53_CT_B="90.5",
            GLM53_CT_SWZ="0",
            GLM53_EC_RESERVE_GB="1.5",
            GLM53_EC_ELASTIC_GB="8",
            GLM53_EC_STAGE_GB="2.6",
            GLM53_TRITON_PIN="0",
            GLM53_ROOT="/srv/glm53",
            GLM53_MODEL_DIR="/srv/model",
            GLM53_MODELS_DIR="/srv/models",
        ),
    )
    assert found.settings == Settings(
        mode=Mode.EXACT,
        tier_cpus="0-7",
        tier_threads=6,
        tier_bytes_per_s=90_500_000_000,
        tier_swizzled=False,
        vram_reserve_bytes=3 * GIB // 2,
        vram_elastic_bytes=8 * GIB,
        vram_stage_bytes=int(2.6 * GIB),
        triton_pin=False,
        root=Path("/srv/glm53"),
        model_dir=Path("/srv/model"),
        models_dir=Path("/srv/models"),
    )
    assert found.warnings == ()


def test_T112_a_misspelt_variable_is_named_with_its_likely_meaning(home):
    found = profile.load({}, environ=environ(home, GLM53_PROT="99", GLM53_ZZZZZZ="1"))
    assert found.warnings == (
        "unknown GLM53_PROT, did you mean GLM53_PORT?",
        "unknown GLM53_ZZZZZZ, nothing reads it",
    )


def test_T119_lists_are_comma_separated_and_empty_means_not_set(home):
    found = profile.load(
        {}, environ=environ(home, GLM53_MIRRORS="a, b", GLM53_PORT="", GLM53_MODE="")
    )
    assert found.settings.mirrors == ("a", "b")
    assert found.settings.port == 8080
    assert found.origin("listen.port") == "default"


def test_the_systematic_name_is_read_and_the_short_one_wins(home):
    assert profile.load({}, environ=environ(home, GLM53_LISTEN__PORT="9")).settings.port == 9
    both = environ(home, GLM53_LISTEN__PORT="9", GLM53_PORT="10")
    assert profile.load({}, environ=both).settings.port == 10


def test_a_gpu_of_ours_wins_over_the_visible_devices(home):
    theirs = environ(home, CUDA_VISIBLE_DEVICES="1")
    found = profile.load({}, environ=theirs)
    assert (found.settings.gpu, found.origins["gpu.select"].where) == ("1", "CUDA_VISIBLE_DEVICES")
    for name in ("GLM53_GPU", "GLM53_GPU__SELECT"):
        ours = environ(home, CUDA_VISIBLE_DEVICES="1", **{name: "0"})
        assert profile.load({}, environ=ours).settings.gpu == "0"


def test_variables_of_others_are_not_settings(home, monkeypatch):
    """Neither a bare field name nor the process's own environment behind the snapshot."""
    monkeypatch.setenv("GLM53_PORT", "99")
    found = profile.load({}, environ=environ(home, port="98", PORT="97", glm53_port="96"))
    assert found.settings == Settings()


def test_a_value_that_a_higher_layer_replaces_is_not_judged(home):
    user_file(home, "[listen]\nport = 'many'\n")
    assert profile.load({"port": 5}, environ=environ(home)).settings.port == 5


def test_a_folder_in_place_of_the_file_is_an_error(home):
    (home / ".config/glm53/config.toml").mkdir(parents=True)
    with pytest.raises(UsageError, match="cannot read"):
        profile.load({}, environ=environ(home))


def test_an_unknown_key_is_refused_with_file_line_and_guess(home):
    file = user_file(home, "# mine\n[listen]\nprot = 99\n")
    with pytest.raises(UsageError) as caught:
        profile.load({}, environ=environ(home))
    assert caught.value.message == f"{file}:3: unknown setting 'listen.prot'"
    assert caught.value.hint == "did you mean 'listen.port'?"
    assert caught.value.exit_code == 2


def test_D06_a_broken_file_is_an_error_with_its_place_and_never_defaults(home):
    user_file(home, "[listen\nport = 1\n")
    with pytest.raises(UsageError, match=r"config\.toml:1: not valid TOML: "):
        profile.load({}, environ=environ(home))
    user_file(home, "x = " + "[" * 5000 + "]" * 5000)
    with pytest.raises(UsageError, match=r"cannot read .*config\.toml"):
        profile.load({}, environ=environ(home))


def test_D06_nothing_is_created_by_reading_settings(home):
    profile.load({}, environ=environ(home))
    assert not home.exists()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("GLM53_PORT", "many", "GLM53_PORT: 'many' is not a value for listen.port"),
        ("GLM53_EC_RESERVE_GB", "-1", "must not be negative"),
        (
            "GLM53_PORT",
            "65536",
            "GLM53_PORT: '65536' is not a value for listen.port: must be at most",
        ),
        ("GLM53_CONTEXT_TOKENS", "0", "must be at least 256"),
        ("GLM53_CACHE_TOKENS", "255", "must be at least 256"),
        ("GLM53_MAX_BATCH", "0", "must be at least 1"),
        ("GLM53_CHUNK_TOKENS", "0", "must be at least 1"),
        ("GLM53_CT_THREADS", "0", "must be at least 1"),
        ("GLM53_MAX_BODY_MB", "1e308", "is too large"),
        ("GLM53_CT_B", "1e308", "is too large"),
        ("GLM53_SERVED_NAME", "m\udcff", "must be UTF-8 text"),
        ("GLM53_MODEL_DIR", "/m\udcff", "must be UTF-8 text"),
        ("GLM53_ENGINE", "stok", "GLM53_ENGINE: 'stok' is not a value for engine"),
        ("GLM53_EC_RESERVE_GB", "inf", "GLM53_EC_RESERVE_GB: 'inf' is not a value"),
        ("GLM53_VRAM__RESERVE_GIB", "lots", "GLM53_VRAM__RESERVE_GIB: 'lots' is not a value"),
        ("GLM53_MODE", "fsat", "GLM53_MODE: 'fsat' is not a value for mode"),
    ],
)
def test_a_bad_value_names_its_variable(home, name, value, expected):
    with pytest.raises(UsageError) as caught:
        profile.load({}, environ=environ(home, **{name: value}))
    assert expected in caught.value.message
    if name == "GLM53_MODE":
        assert caught.value.hint == "did you mean 'fast'?"


@pytest.mark.parametrize("empty", ["", "  "])
@pytest.mark.parametrize("field", ["host", "model", "gpu", "served_name", "api_key_file"])
def test_an_empty_value_is_refused_by_name(home, field, empty):
    with pytest.raises(UsageError) as caught:
        profile.load({field: empty}, environ=environ(home))
    assert "must not be empty" in caught.value.message
    assert f"--{field.replace('_', '-')}" in caught.value.message


def test_an_unknown_profile_lists_the_known_ones(home):
    with pytest.raises(UsageError) as caught:
        profile.load({}, environ=environ(home), profile="fasst")
    assert (
        caught.value.hint
        == "did you mean 'fast'? profiles: auto, cpu, exact, fast, or the path of a .toml file"
    )


@pytest.mark.parametrize("name", ["auto", "exact", "fast", "cpu"])
def test_every_shipped_profile_loads(home, name):
    assert profile.load({}, environ=environ(home), profile=name).settings.mode.value == name


def test_a_named_configuration_that_is_missing_is_an_error(home):
    with pytest.raises(UsageError, match="does not exist"):
        profile.load({}, environ=environ(home, GLM53_CONFIG=str(home / "no.toml")))


def test_a_key_in_the_environment_is_warned_about_and_never_stored(home):
    found = profile.load({}, environ=environ(home, GLM53_API_KEY="sk-sentinel-1"))
    assert found.key_in_environment
    assert "prefer GLM53_API_KEY_FILE" in found.warnings[0]
    assert "sk-sentinel-1" not in repr(found)


def test_the_table_has_one_row_per_name_and_key():
    rows = env.rows()
    assert len({row.env for row in rows}) == len(rows)
    assert len({row.key for row in rows}) == len(rows)
    assert all(row.text and row.env.startswith("GLM53_") for row in rows)


@given(gib=st.floats(0, 1000, allow_nan=False))
def test_gibibytes_round_trip_through_text(gib):
    """What `config show` prints can be pasted back as a setting."""
    values = Environ({"HOME": "/nonexistent", "GLM53_EC_RESERVE_GB": repr(gib)})
    found = profile.load({}, environ=values).settings.vram_reserve_bytes
    assert found == int(gib * GIB)
    row = next(row for row in env.rows() if row.key == "vram.reserve_gib")
    again = float(profile.text_of(found, row))
    assert again == pytest.approx(gib, rel=1e-5, abs=1e-6)
