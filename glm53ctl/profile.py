"""Layers of settings into one `Profile`: defaults, profile file, user file, environment, flags.

The later layer wins, and every key remembers where its value came from. Unknown keys in a file and
bad values anywhere are UsageErrors that name the place; unknown GLM53_ names are warnings.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from glm53ctl import wanted
from glm53ctl.env import Environ, Row, Settings, nearest, rows
from glm53ctl.errors import UsageError
from glm53ctl.paths import Paths, profiles_dir, user_paths

DEFAULT_PROFILE = "auto"
_PLACES = ("instance", "paths.root")  # what tells where a running instance keeps its files


@dataclass(frozen=True, slots=True)
class Origin:
    """Which layer gave a value, and where exactly: a file with its line, a variable, a flag."""

    layer: str  # default, profile, user, environment, flag
    where: str


@dataclass(frozen=True, slots=True)
class Profile:
    settings: Settings
    origins: Mapping[str, Origin]  # by TOML key
    warnings: tuple[str, ...] = ()
    name: str = DEFAULT_PROFILE
    key_in_environment: bool = False  # GLM53_API_KEY is set; its value stays there
    problem: UsageError | None = None  # of `load_anyway`: why most settings are defaults

    def origin(self, key: str) -> str:
        """Text for a plan's Choice: "environment: GLM53_PORT"."""
        found = self.origins[key]
        return found.layer if not found.where else f"{found.layer}: {found.where}"


_FileLayer = tuple[tuple[Row, object, Origin], ...]


def load(
    flags: Mapping[str, object | None],
    *,
    environ: Environ,
    profile: str | None = None,
    spelled: Mapping[str, str] | None = None,
) -> Profile:
    """Resolve all settings. `flags` maps field names of Settings to values; None means not given.

    `spelled` is how the user wrote a flag, by field name, where that is not --field-name.
    Reads the user's file and the profile, writes nothing. Raises UsageError for an unknown key or
    a bad value, naming file and line, variable or flag.
    """
    from pydantic import ValidationError  # with pydantic-settings more than `--help` may take

    from glm53ctl import layers

    name = profile or environ.get("GLM53_PROFILE") or DEFAULT_PROFILE
    config_file = user_paths(environ).config_file
    if environ.get("GLM53_CONFIG") and not config_file.exists():
        raise UsageError(f"GLM53_CONFIG names {config_file}, which does not exist")
    given = {
        row.env: flags[row.field_name] for row in rows() if flags.get(row.field_name) is not None
    }
    user, shipped = _from_file(config_file, "user"), _from_file(profile_file(name), "profile")
    origins = _origins(given, environ, user, shipped)
    origins |= {
        row.key: Origin("flag", spelled[row.field_name])
        for row in rows()
        if spelled and row.field_name in spelled
    }
    files = [{row.env: value for row, value, _ in file} for file in (user, shipped)]
    try:
        settings = layers.resolve(given, environ, files)
    except ValidationError as err:
        raise _bad_value(err.errors()[0], origins) from err
    has_key = environ.get("GLM53_API_KEY") is not None
    return Profile(settings, origins, tuple(_warnings(environ)), name, has_key)


def load_anyway(
    flags: Mapping[str, object | None],
    *,
    environ: Environ,
    profile: str | None = None,
    spelled: Mapping[str, str] | None = None,
) -> Profile:
    """As `load`, for what must work with settings that cannot be read: stopping a server, doctor.

    Then everything but the flags and the places of files is at its default, and `problem` says why.
    Raises UsageError for wrong flags only.
    """
    try:
        return load(flags, environ=environ, profile=profile, spelled=spelled)
    except UsageError as err:
        problem = err
    by_key = {row.key: row for row in rows()}
    kept = _places_in(user_paths(environ).config_file)
    for row, name in environ.settings():
        if row.key in _PLACES:
            kept[row.key] = environ.values[name]
    values = {by_key[key].env: value for key, value in kept.items()}
    bare = Environ({**values, "GLM53_CONFIG": "/dev/null"})
    return replace(load(flags, environ=bare, profile=profile, spelled=spelled), problem=problem)


def _places_in(file: Path) -> dict[str, str]:
    """The places that a damaged file names, each in a line that can still be read."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found: dict[str, str] = {}
    for key in _PLACES:
        number = line_of(key, text)
        try:
            line = tomllib.loads(text.splitlines()[number - 1]) if number else {}
        except tomllib.TOMLDecodeError:
            continue
        value = next((value for _, value in flatten(line)), None)
        if isinstance(value, str) and value.strip():
            found[key] = value
    return found


def paths_for(profile: Profile, environ: Environ) -> Paths:
    """The directories these settings ask for."""
    settings = profile.settings
    return user_paths(environ, root=settings.root, models_dir=settings.models_dir)


def parse_set(text: str) -> tuple[str, str]:
    """ "limits.max_batch=2" as (field name, value text). Raises UsageError for an unknown key."""
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(
            f"--set {text!r} is not KEY=VALUE", hint="for example --set vram.reserve_gib=2"
        )
    return find_row(key.strip()).field_name, value.strip()


def find_row(key: str, *, where: str | None = None) -> Row:
    """The row of a key. Raises UsageError with a did-you-mean, naming `where` the key was found."""
    by_key = {row.key: row for row in rows()}
    if key in by_key:
        return by_key[key]
    leaves = {row.key.rpartition(".")[2]: row.key for row in rows()}
    close = leaves.get(key) or nearest(key, set(by_key))
    raise UsageError(
        f"{f'{where}: ' if where else ''}unknown setting {key!r}",
        hint=f"did you mean {close!r}?" if close else "see `glm53ctl config show`",
        error_id="CFG-002",
    )


def profile_file(name: str) -> Path:
    """Path of a profile: a name of ours, or the path of a TOML file."""
    path = Path(name) if name.endswith(".toml") else profiles_dir() / f"{name}.toml"
    if path.is_file():
        return path
    known = tuple(sorted(item.stem for item in profiles_dir().glob("*.toml")))
    close = nearest(name, known)
    guess = f"did you mean {close!r}? " if close else ""
    raise UsageError(
        f"there is no profile {name!r}",
        hint=f"{guess}profiles: {', '.join(known)}, or the path of a .toml file",
        error_id="CFG-003",
    )


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """Text and content of a file of settings; both empty without one.

    Raises UsageError, naming file and line, for one that cannot be parsed.
    """
    way_out = (
        f"repair it, or start anew: mv {shlex.quote(str(path))} {shlex.quote(f'{path}.broken')}"
    )
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except FileNotFoundError:
        return "", {}
    except tomllib.TOMLDecodeError as err:
        reason, _, place = str(err).partition(" (at ")
        number = re.match(r"line (\d+)", place)
        line = int(number[1]) if number else max(1, len(text.splitlines()))
        reason = reason[:1].lower() + reason[1:]
        raise UsageError(
            f"{path}:{line}: not valid TOML: {reason}", hint=way_out, error_id="CFG-005"
        ) from err
    except (OSError, UnicodeDecodeError, RecursionError) as err:
        raise UsageError(f"cannot read {path}: {err}", hint=way_out, error_id="CFG-005") from err


def _from_file(path: Path, layer: str) -> _FileLayer:
    text, document = read_toml(path)

    def where(key: str) -> str:
        return f"{path}:{line_of(key, text) or 1}"

    return tuple(
        (find_row(key, where=where(key)), value, Origin(layer, where(key)))
        for key, value in flatten(document)
    )


def _origins(
    given: Mapping[str, object], environ: Environ, *files: _FileLayer
) -> dict[str, Origin]:
    """Which layer gives each key, from the lowest layer to the highest."""
    found = {row.key: Origin("default", "") for row in rows()}
    for file in reversed(files):
        found |= {row.key: origin for row, _, origin in file}
    found |= {row.key: Origin("environment", name) for row, name in environ.settings()}
    flags = ((row, row.field_name.replace("_", "-")) for row in rows() if row.env in given)
    return found | {row.key: Origin("flag", f"--{flag}") for row, flag in flags}


def flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every value of nested tables with its key, dotted."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flatten(cast("dict[str, Any]", value), f"{prefix}{name}.")
        else:
            yield prefix + name, value


def line_of(key: str, text: str) -> int | None:
    """Line of a key in TOML text; None when it is not there in its usual spelling."""
    section, _, leaf = key.rpartition(".")
    inside = not section
    for number, line in enumerate(text.splitlines(), start=1):
        bare = line.split("#")[0].strip()
        if bare.startswith("["):
            inside = bare.strip("[] ") == section
        elif bare.partition("=")[0].strip() in ({leaf} if inside else {key}):
            return number
    return None


def _bad_value(problem: Mapping[str, Any], origins: Mapping[str, Origin]) -> UsageError:
    row = next(row for row in rows() if row.env == problem["loc"][0])
    text = str(problem["input"])
    guess = nearest(text, ("auto", "fast", "exact", "cpu")) if row.key == "mode" else None
    return UsageError(
        f"{origins[row.key].where}: {text!r} is not a value for {row.key}: {wanted.must(problem)}",
        hint=f"did you mean {guess!r}?" if guess else f"{row.key}: {row.text}",
        error_id="CFG-004",
    )


def _warnings(environ: Environ) -> Iterator[str]:
    for name, close in environ.unknown_names():
        yield f"unknown {name}" + (f", did you mean {close}?" if close else ", nothing reads it")
    if environ.get("GLM53_API_KEY"):
        yield "GLM53_API_KEY is visible to other programs of this user; prefer GLM53_API_KEY_FILE"


def text_of(value: object, row: Row) -> str:
    """A value as a user would write it: in the row's unit, and with a word for "not set"."""
    if value is None:
        return "(not set)"
    if row.unit != 1 and isinstance(value, int):
        return f"{value / row.unit:g}"
    if isinstance(value, tuple):
        return ",".join(cast("tuple[str, ...]", value)) or "(none)"
    return str(value).lower() if isinstance(value, bool) else str(value)
