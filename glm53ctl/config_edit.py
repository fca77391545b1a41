"""Changes one setting in the user's TOML file and leaves everything else in it as it is."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

from glm53ctl.env import Environ, Row
from glm53ctl.errors import UsageError
from glm53ctl.paths import foreign_home
from glm53ctl.profile import find_row, flatten, line_of, load, read_toml


def set_value(file: Path, key: str, value: str | None) -> bool:
    """Write `key = value` into a TOML file, None removes it; whether that changed anything.

    The value is checked before, and the new text as well: no other setting may differ.
    Raises UsageError for an unknown key, a value that its type refuses, a file that cannot be
    parsed or written, or a setting written in a way that cannot be changed line by line.
    """
    row = find_row(key)
    if value == "":
        raise UsageError(f"no value for {key}", hint=f"remove it: glm53ctl config unset {key}")
    text, document = read_toml(file)
    before = dict(flatten(document))
    if value is None and row.key not in before:
        return False
    lines = text.splitlines()
    number = line_of(row.key, text)
    section, _, leaf = row.key.rpartition(".")
    line = f"{leaf} = {_toml(row, value)}" if value is not None else None
    if number is not None:
        lines[number - 1 : number] = [line] if line else []
    elif line:
        _insert(lines, section, line)
    if line is None:
        _drop_empty(lines, section)
    wanted = {name: kept for name, kept in before.items() if name != row.key}
    if line is not None:
        wanted[row.key] = tomllib.loads(line)[leaf]
    fresh = "".join(f"{line}\n" for line in lines)
    if _content(fresh) != wanted:
        raise UsageError(
            f"{file}:{number or 1}: {row.key} is written in a way that only an editor can change",
            hint=f"change {row.key} in that file by hand",
        )
    _write(file, fresh)
    return True


def _content(text: str) -> dict[str, object] | None:
    try:
        return dict(flatten(tomllib.loads(text)))
    except tomllib.TOMLDecodeError:
        return None


def _header(lines: list[str], section: str) -> int | None:
    """Index of the line that begins a section."""
    bare = (line.split("#")[0].replace(" ", "").strip() for line in lines)
    return next((index for index, line in enumerate(bare) if line == f"[{section}]"), None)


def _insert(lines: list[str], section: str, line: str) -> None:
    """Put a line into its section: after the header, before all sections, or in a new section."""
    header = _header(lines, section)
    if not section:
        lines.insert(0, line)
    elif header is not None:
        lines.insert(header + 1, line)
    else:
        lines += [*([""] if lines else []), f"[{section}]", line]


def _drop_empty(lines: list[str], section: str) -> None:
    """Remove the header of a section that has no setting left; comments stay."""
    header = _header(lines, section) if section else None
    if header is None:
        return
    for line in lines[header + 1 :]:
        bare = line.split("#")[0].strip()
        if bare.startswith("["):
            break
        if bare:
            return
    blank_before = header > 0 and not lines[header - 1].strip()
    del lines[header - blank_before : header + 1]


def _toml(row: Row, value: str) -> str:
    """The TOML spelling of a value given as text. Raises UsageError for one its type refuses."""
    found = load(
        {row.field_name: value},
        environ=Environ({"HOME": "/nonexistent"}),
        spelled={row.field_name: "config set"},
    )
    parsed = getattr(found.settings, row.field_name)
    if isinstance(parsed, bool):
        return str(parsed).lower()
    if isinstance(parsed, int):
        return str(parsed) if row.unit == 1 else repr(float(value))
    if isinstance(parsed, tuple):
        return json.dumps(parsed, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)  # a TOML basic string has the same escapes


def _write(file: Path, text: str) -> None:
    owner = foreign_home(Environ.current(), file, user_id=os.geteuid())
    if owner:
        raise UsageError(
            f"{file} would belong to root in the home of {owner}",
            hint="run it without sudo: nothing of glm53ctl needs root",
        )
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.write_text(text, encoding="utf-8")
        fresh.chmod(0o600)
        fresh.replace(file)
    except OSError as err:
        raise UsageError(f"cannot write {file}: {err.strerror}") from err
