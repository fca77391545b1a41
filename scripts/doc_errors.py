"""Every error id that the sources name, with its message's template and exit code, for docs/exit-codes.md.

Sources are parsed, not imported: the GPU engine's errors are found without a GPU.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from glm53ctl import errors
from glm53ctl.errors import ChildExit
from glm53ctl.supervisor.classify import Ending, classify

ROOT = Path(__file__).resolve().parent.parent
# The ids that an error and a check of the doctor share, because both are about the same thing.
ONE_FINDING = {
    "ENG-001": "the engine is not installed",
    "FIT-001": "no mode fits",
    "GPU-005": "no GPU is the one that was named",
    "NET-001": "the port is taken",
}
SOURCES = ("glm53ctl", "server/glm53_server", "kernels/glm53_kernels")


def code(text: str) -> str:
    return f"`{text}`"


def error_rows() -> Iterator[tuple[str, str, str, str]]:
    """(id, exit codes, what it says, files) of every error id, sorted."""
    by_id: dict[str, list[Mention]] = defaultdict(list)
    for mention in mentions():
        by_id[mention.error_id].append(mention)
    for error_id, found in sorted(by_id.items()):
        says = dict.fromkeys(item.message for item in found if item.message)
        files = dict.fromkeys(item.file for item in found)
        exits = sorted({str(item.exit_code) for item in found if item.exit_code is not None})
        yield error_id, ", ".join(exits), "; ".join(says), ", ".join(map(code, files))


@dataclass(frozen=True, slots=True)
class Mention:
    """An error id in the sources: its file, the message's template, the exit code if it is plain."""

    error_id: str
    file: str
    message: str
    exit_code: int | None


def mentions() -> Iterator[Mention]:
    """Every error id that a call or a class names, in source order."""
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                file = path.relative_to(ROOT).as_posix()
                if isinstance(node, ast.Call):
                    yield from _of_call(node, file)
                elif isinstance(node, ast.ClassDef):
                    yield from _of_class(node, file)


def _of_call(node: ast.Call, file: str) -> Iterator[Mention]:
    for keyword in node.keywords:
        if keyword.arg == "error_id" and isinstance(keyword.value, ast.Constant):
            texts = [text for argument in node.args if (text := _template(argument))]
            message = max(texts, key=len, default="")
            yield Mention(str(keyword.value.value), file, message, _exit_code([node]))


def _of_class(node: ast.ClassDef, file: str) -> Iterator[Mention]:
    for statement in node.body:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id="error_id")], value=ast.Constant(value=str(found))
            ):
                words = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
                message = f"{code(node.name)} {words or _in_tree(node.name)}".strip()
                parts = [ast.Name(node.name), *node.bases, *node.body]
                yield Mention(found, file, message, _exit_code(parts))


def _exit_code(parts: list[ast.AST]) -> int | None:
    """The command's exit code: written here, of a ChildExit named here, or of an error class."""
    nodes = [node for part in parts for node in ast.walk(part)]
    for node in sorted(nodes, key=lambda node: isinstance(node, ast.Name)):
        match node:
            case ast.Attribute(value=ast.Name(id="ChildExit"), attr=name):
                return classify(Ending(ChildExit[name])).exit_code
            case ast.keyword(arg="exit_code", value=ast.Constant(value=int(number))):
                return number
            case ast.Name(id="Failure"):
                return errors.StartFailed.exit_code
    kinds = (getattr(errors, node.id, None) for node in nodes if isinstance(node, ast.Name))
    return next((k.exit_code for k in kinds if k is not None and hasattr(k, "exit_code")), None)


def _in_tree(name: str) -> str:
    """What the tree at the top of errors.py says of a class."""
    found = re.search(rf"\b{name} +\d+ +(.+)", errors.__doc__ or "")
    return found[1] if found else ""


def _template(node: ast.expr) -> str:
    """A string literal, with an ellipsis for what is filled in."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            parts = (p.value if isinstance(p, ast.Constant) else "…" for p in values)
            return "".join(map(str, parts))
    return ""
