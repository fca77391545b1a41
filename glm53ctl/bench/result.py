"""The result of one run: a JSON document with a schema, kept with its instance and shareable.

Reading checks the schema and the parts that comparisons and reports need; what scripts measured is
kept as they wrote it.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from glm53ctl.errors import UsageError

SCHEMA = "glm53ctl.bench/1"
Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Machine:
    """What a figure must not be quoted without."""

    cpu: str
    cores: int
    ram_bytes: int
    system: str
    gpu: str | None = None
    driver: str | None = None
    power_limit_w: float | None = None
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """What was measured. `plan` is the fingerprint of its plan, `vram_limit_bytes` its cap, if any."""

    url: str
    mode: str | None
    engine: str | None
    model: str | None
    plan: str | None
    vram_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    name: str
    why: str
    where: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """One run. Parts that were not measured are None; rates are bytes or tokens per second."""

    created: str
    version: str
    command: str
    seconds: float
    machine: Machine
    served: Served
    measured: Facts
    verdict: Judged
    prediction: Facts | None = None
    panel: Facts | None = None
    stream: Facts | None = None
    sweep: Facts | None = None
    phases: tuple[Facts, ...] = ()
    samples: tuple[Facts, ...] = ()
    taints: tuple[str, ...] = ()
    commit: str | None = None  # of the checkout that measured, when it is one
    note: str | None = None  # what a reader must know besides; written by hand
    schema: str = SCHEMA

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def from_json(text: str, source: str) -> Result:
    """Parse a result. Raises UsageError naming the file and the field that does not match."""
    from pydantic import TypeAdapter, ValidationError

    try:
        parsed: Any = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise UsageError(f"{source} is not a bench result: {err}") from err
    if not isinstance(parsed, dict):
        raise UsageError(f"{source} is not a bench result: it is JSON, but no object")
    body = cast("Facts", parsed)
    found: object = body.get("schema")
    if found != SCHEMA:
        raise _of_another_kind(source, found, body.get("command"))
    try:
        return TypeAdapter(Result).validate_json(text, extra="forbid")
    except ValidationError as err:
        first = err.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{source}: {where}: {first['msg']}") from err


def _of_another_kind(source: str, schema: object, command: object) -> UsageError:
    """For a document that is no result: which it is, what is read here, and what to do with this one."""
    is_word = isinstance(schema, str)
    named = f"has schema {schema[:80]!r}" if is_word else "names no schema"
    show = f"python3 -m json.tool {shlex.quote(source)}"
    if is_word and schema.startswith(f"{SCHEMA.split('/')[0]}/"):
        hint = f"another version of glm53ctl wrote it: show it with that one, or as it is: {show}"
    elif isinstance(command, str) and command.strip():
        hint = f"these are the figures of `{' '.join(command.split())[:160]}`; read them as they are: {show}"
    else:
        hint = f"measure one: glm53ctl bench --out FILE; this file as it is: {show}"
    return UsageError(
        f"{source} {named}, and only results of `glm53ctl bench --out FILE` ({SCHEMA}) are read here",
        hint=hint,
    )


def read(path: Path) -> Result:
    """Raises UsageError when the file cannot be read or is no result."""
    try:
        return from_json(path.read_text(encoding="utf-8"), str(path))
    except OSError as err:
        raise UsageError(f"cannot read {path}: {err.strerror}") from err
    except UnicodeDecodeError as err:
        raise UsageError(f"{path} is not a bench result: it is no UTF-8 text") from err


def saved(folder: Path) -> list[Path]:
    """Results of an instance, oldest first. `folder` is its state directory."""
    return sorted((folder / "bench").glob("*.json"))


def save(result: Result, folder: Path) -> Path:
    """Keep a result with its instance; names sort by time."""
    stamp = result.created.replace(":", "").replace("-", "")[:15]
    target = folder / "bench"
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    path, number = target / f"{stamp}.json", 1
    while path.exists():
        path, number = target / f"{stamp}-{number}.json", number + 1
    path.write_text(result.to_json(), encoding="utf-8")
    return path
