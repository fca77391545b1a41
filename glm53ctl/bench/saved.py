"""Results from files: read, and shown once, so that a damaged one is refused before it is used.

The parts that scripts measured have no schema of their own. What shows a result is what knows which
values it needs, so whatever fails there on a file's values is an error of that file.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from glm53ctl.bench import report, text
from glm53ctl.bench.result import Facts, Result, read
from glm53ctl.errors import UsageError
from glm53ctl.render import Look

_PLAIN = Look(colour=False, unicode=False, live=False)
_SPREAD = ("median", "min", "max", "n")
_OF_VALUES = (TypeError, LookupError, AttributeError, ValueError, ArithmeticError, RecursionError)


def read_shown(path: Path) -> Result:
    """A result that can be printed, drawn and compared. Raises UsageError naming file and field."""
    with damage_named(path):
        result = read(path)
        for where, found in _spreads(result.sweep or {}):
            _check_numbers(f"{path}: {where}", found)
        _ = list(text.result_lines(result, None, _PLAIN))
        _ = text.markdown(result, None), report.page(result), result.to_json()
    return result


@contextmanager
def damage_named(path: Path) -> Generator[None]:
    """Turns what a file's values break into UsageError. For work on nothing but that file's result."""
    try:
        yield
    except _OF_VALUES as err:
        missing = f"no {err}" if isinstance(err, KeyError) else str(err) or type(err).__name__
        raise UsageError(
            f"{path} is damaged: a part of it cannot be shown: {missing[:200]}",
            hint="measure again: glm53ctl bench --out FILE",
        ) from err


def _spreads(sweep: Facts) -> Iterator[tuple[str, Facts]]:
    """The figures of a sweep that were measured, with the names of their fields."""
    for name, one in cast("dict[str, Facts]", sweep.get("decode") or {}).items():
        for part in () if "skipped" in one else ("aggregate", "per_stream_mean"):
            yield f"sweep.decode.{name}.{part}", one[part]
    for part in ("prefill", "ttft_s"):
        for name, one in cast("dict[str, Facts]", sweep.get(part) or {}).items():
            if "median" in one or part == "ttft_s":
                yield f"sweep.{part}.{name}", one


def _check_numbers(where: str, found: Facts) -> None:
    for key in _SPREAD:
        value: Any = found.get(key)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise UsageError(f"{where}.{key} is {str(value)[:40]!r}, must be a number")
