"""Changes one setting in the user's TOML file and leaves everything else in it as it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

from glm53ctl.env import Environ, Row
from glm53ctl.errors import UsageError
from glm53ctl.paths import foreign_home
from glm53ctl.profile import find_row, line_of, load


def set_value(file: Path, key: str, value: str | None) -> None:
    """Write `key = value` into a TOML file, None removes it. The value is checked before.

    Raises UsageError for an unknown key, a value that its type refuses, or a file not writable.
    """
    row = find_row(key)
    if value == "":
        raise UsageError(f"no value for {key}", hint=f"remove it: glm53ctl config unset {key}")
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = text.splitlines()
    number = line_of(row.key, text)
    section, _, leaf = row.key.rpartition(".")
    line = f"{leaf} = {_toml(row, value)}" if value is not None else None
    if number is not None:
        lines[number - 1 : number] = [line] if line else []
    elif line:
        _insert(lines, section, line)
    _write(file, "\n".join(lines) + "\n")


def _insert(lines: list[str], section: str, line: str) -> None:
    """Put a line into its section: after the header, before all sections, or in a new section."""
    if not section:
        lines.insert(0, line)
    elif f"[{section}]" in lines:
        lines.insert(lines.index(f"[{section}]") + 1, line)
    else:
        lines += [*([""] if lines else []), f"[{section}]", line]


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
