"""Ratchets on size: no file over 400 lines, no function over 60, in what we ship."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("glm53ctl", "server", "kernels")
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60
# May only shrink. Verbs with many options are long by their signatures.
LONG_FUNCTIONS = frozenset({"doctor.doctor", "up.up", "plan.plan"})
SOURCES = sorted(
    path
    for folder in FOLDERS
    for suffix in ("*.py", "*.h", "*.cpp", "*.cu", "*.cuh", "*.hpp")
    for path in (ROOT / folder).rglob(suffix)
    if "_lib" not in path.parts  # where a build puts its files
)


def test_there_is_something_to_look_at():
    assert len(SOURCES) > 30


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_small(path):
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    assert lines <= MAX_FILE_LINES, f"{path} has {lines} lines"
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            name = f"{path.stem}.{node.name}"
            if name not in LONG_FUNCTIONS:
                assert length <= MAX_FUNCTION_LINES, f"{name} has {length} lines"


def test_every_module_says_what_it_is():
    bare = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if path.suffix == ".py" and path.read_text(encoding="utf-8").strip()
        and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]  # fmt: skip
    assert bare == []
