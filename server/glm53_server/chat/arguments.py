"""How one tool argument becomes JSON: its kind comes from the tool's schema, never from its looks.

Pure. A string parameter keeps its text byte for byte; anything else is converted only when it parses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, NoReturn, cast

Schema = Mapping[str, Any]
_MAX_DEPTH = 16  # of $ref and combinators; a schema that nests deeper is treated as untyped


class Kind(Enum):
    """How a value is written."""

    TEXT = auto()  # streamed as a JSON string
    TEXT_OR_NULL = auto()  # exactly `null` is null, anything else is a string
    TEXT_OR_CONTAINER = auto()  # a JSON object or array when it is one, else a string
    JSON = auto()  # buffered; JSON when it parses, else a string


def value_kind(parameters: Schema | None, key: str) -> Kind:
    """The kind of argument `key` of a tool whose parameters schema is `parameters`."""
    root: Schema = parameters or {}
    types = _types(_property(root, key), root, 0)
    if not types:
        return Kind.TEXT
    if "string" not in types:
        return Kind.JSON
    if types & {"object", "array"}:
        return Kind.TEXT_OR_CONTAINER
    return Kind.TEXT_OR_NULL if "null" in types else Kind.TEXT


def json_value(text: str, kind: Kind) -> str:
    """The JSON text of a complete value of any buffered kind."""
    if kind is Kind.TEXT_OR_NULL:
        return "null" if text == "null" else quoted(text)
    stripped = text.strip()
    if kind is Kind.TEXT_OR_CONTAINER and not stripped.startswith(("{", "[")):
        return quoted(text)
    return stripped if is_json(stripped) else quoted(text)


def is_json(text: str) -> bool:
    """True for one strict JSON value: no NaN or Infinity, no trailing text, bounded nesting."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def quoted(text: str) -> str:
    """`text` as a JSON string; non-ASCII stays as it is."""
    return json.dumps(text, ensure_ascii=False)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _mapping(value: object) -> Schema:
    return cast(Schema, value) if isinstance(value, Mapping) else {}


def _property(root: Schema, key: str) -> Schema:
    schema = _resolved(root, root, 0)
    properties = _mapping(schema.get("properties"))
    if key in properties:
        return _mapping(properties[key])
    for part in _parts(schema, "allOf", "anyOf", "oneOf"):
        inner = _mapping(_resolved(part, root, 0).get("properties"))
        if key in inner:
            return _mapping(inner[key])
    return _mapping(schema.get("additionalProperties"))


def _parts(schema: Schema, *names: str) -> list[Schema]:
    found: list[Schema] = []
    for name in names:
        value = schema.get(name)
        if isinstance(value, list):
            found += [_mapping(part) for part in cast(list[object], value)]
    return found


def _resolved(schema: Schema, root: Schema, depth: int) -> Schema:
    """Follow local `$ref`s; an unknown target is an empty schema."""
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return schema
    if depth > _MAX_DEPTH or not reference.startswith("#"):
        return {}
    target: object = root
    for step in reference[1:].split("/")[1:]:
        target = _mapping(target).get(step.replace("~1", "/").replace("~0", "~"))
    return _resolved(_mapping(target), root, depth + 1)


def _types(schema: Schema, root: Schema, depth: int) -> frozenset[str]:
    """The JSON types a schema allows; empty when it says nothing."""
    if depth > _MAX_DEPTH:
        return frozenset()
    schema = _resolved(schema, root, depth)
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(name for name in cast(list[object], declared) if isinstance(name, str))
    if "const" in schema:
        return frozenset({_type_of(schema["const"])})
    if isinstance(schema.get("enum"), list):
        return frozenset(_type_of(value) for value in cast(list[object], schema["enum"]))
    union = frozenset[str]()
    for part in _parts(schema, "anyOf", "oneOf"):
        union |= _types(part, root, depth + 1)
    for part in _parts(schema, "allOf"):
        narrowed = _types(part, root, depth + 1)
        union = (union & narrowed or narrowed) if union else narrowed
    return union


def _type_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
