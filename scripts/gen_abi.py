"""Write kernels/glm53_kernels/_abi.py, the ctypes mirror of kernels/csrc/abi.h.

    python scripts/gen_abi.py [--check]

It reads exactly the plain style abi.h is written in: enums with explicit values, structs of scalars
and pointers, one-line GLM53_API prototypes. Anything else is an error, never a guess.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "kernels/csrc/abi.h"
MIRROR = ROOT / "kernels/glm53_kernels/_abi.py"

_SCALARS = {
    "int": "ctypes.c_int",
    "int32_t": "ctypes.c_int32",
    "uint32_t": "ctypes.c_uint32",
    "uint64_t": "ctypes.c_uint64",
    "float": "ctypes.c_float",
}
_HEAD = '''"""Mirror of kernels/csrc/abi.h, written by scripts/gen_abi.py. Do not edit."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar
'''


def generate(header: str) -> str:
    """The text of _abi.py for the text of abi.h."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    version = re.search(r"#define GLM53_ABI_VERSION (\d+)", text)
    if version is None:
        raise SystemExit("abi.h: no GLM53_ABI_VERSION")
    parts = [_HEAD, f"ABI_VERSION = {version[1]}"]
    parts += [_enum(body) for body in re.findall(r"enum glm53_\w+ \{(.*?)\};", text, re.DOTALL)]
    structs = re.findall(r"typedef struct (glm53_\w+) \{(.*?)\} \1;", text, re.DOTALL)
    parts += ["\n" + _struct(name, body) for name, body in structs]
    parts.append("\n\nSTRUCTS: dict[str, type[ctypes.Structure]] = {")
    parts += [f'    "{name}": {_class(name)},' for name, _ in structs]
    parts.append("}\n\nFUNCTIONS: dict[str, tuple[Any, list[Any]]] = {")
    prototypes = re.findall(
        r"^GLM53_API ([\w ]+?\*?) ?(glm53_\w+)\((.*?)\);", text, re.MULTILINE | re.DOTALL
    )
    parts += [_function(*prototype) for prototype in prototypes]
    return "\n".join([*parts, "}", ""])


def _enum(body: str) -> str:
    values = re.findall(r"GLM53_(\w+) = (\d+),", body)
    return "\n" + "\n".join(f"{name} = {value}" for name, value in values)


def _class(name: str) -> str:
    return "".join(word.capitalize() for word in name.removeprefix("glm53_").split("_"))


def _struct(name: str, body: str) -> str:
    fields = [line.strip() for line in body.split(";") if line.strip()]
    lines = [f"\nclass {_class(name)}(ctypes.Structure):", "    _fields_: ClassVar = ["]
    for field in fields:
        kind, field_name = re.fullmatch(r"(.+?)\s*\b(\w+)", field, re.DOTALL).groups()
        lines.append(f'        ("{field_name}", {_type(kind)}),')
    return "\n".join([*lines, "    ]"])


def _function(result: str, name: str, arguments: str) -> str:
    kinds = [] if arguments == "void" else [a.strip() for a in arguments.split(",")]
    types = ", ".join(_type(re.fullmatch(r"(.+?)\s*\b\w+", kind).group(1)) for kind in kinds)
    return f'    "{name}": (\n        {_type(result)},\n        [{types}],\n    ),'


def _type(kind: str) -> str:
    kind = kind.strip()
    if kind == "const char*":
        return "ctypes.c_char_p"
    if kind.endswith("*"):
        return "ctypes.c_void_p"
    if kind not in _SCALARS:
        raise SystemExit(f"abi.h: the generator does not know the type {kind!r}")
    return _SCALARS[kind]


def main() -> int:
    text = generate(HEADER.read_text())
    if sys.argv[1:] == ["--check"]:
        if MIRROR.read_text() != text:
            print(
                "error: _abi.py does not match abi.h; run python scripts/gen_abi.py",
                file=sys.stderr,
            )
            return 1
        return 0
    MIRROR.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
