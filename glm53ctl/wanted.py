"""What a value must be, in our words: pydantic's complaints are for programmers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_WHOLE, _NUMBER = "must be a whole number, in digits", "must be a number"
_KINDS = {
    "int_parsing": _WHOLE,
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "int_parsing_size": "is too large",
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "finite_number": "must be a finite number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text, in quotes",
    "tuple_type": "must be a list of texts",
    "path_type": "must be a path, in quotes",
}


def must(problem: Mapping[str, Any]) -> str:
    """ "must be a whole number, in digits" for one of pydantic's problems."""
    kind = str(problem["type"])
    limits: Mapping[str, Any] = problem.get("ctx", {})
    if kind == "greater_than_equal":
        return f"must be at least {limits['ge']:g}"
    if kind == "less_than_equal":
        return f"must be at most {limits['le']:g}"
    if kind in {"literal_error", "enum"}:
        return f"must be {str(limits['expected']).replace(chr(39), '')}"
    if known := choices(str(problem["msg"])):
        return f"must be {either(known)}"
    return _KINDS.get(kind) or str(problem["msg"])


def choices(message: str) -> tuple[str, ...]:
    """The words that a message of click offers for a value that is none of them."""
    _, found, tail = message.partition("is not one of ")
    return tuple(re.findall(r"'([^']*)'", tail)) if found else ()


def either(words: Iterable[str]) -> str:
    """ "a, b or c"."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last
