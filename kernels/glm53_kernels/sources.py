"""What a native library is made of, and whether a built one still matches its sources.

A library carries a hash of its sources and flags, so that "is it stale?" never depends on file times.
Nothing here compiles or loads anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
CSRC = PACKAGE.parent / "csrc"
LIB = PACKAGE / "_lib"

_FLAGS = (
    "-std=c++20",
    "-O3",
    "-ffp-contract=off",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
    "-Wall",
    "-Wextra",
)
# Machine code for the cards people have, and PTX of the newest for those to come.
_CUDA_ARCHITECTURES = ("80", "86", "89", "90", "100", "120")
_CUDA_FLAGS = (
    "-std=c++17",
    "-O3",
    "-Xcompiler=-fPIC,-Wall",
    "-cudart=static",
    *(f"-gencode=arch=compute_{a},code=sm_{a}" for a in _CUDA_ARCHITECTURES),
    f"-gencode=arch=compute_{_CUDA_ARCHITECTURES[-1]},code=compute_{_CUDA_ARCHITECTURES[-1]}",
)
_HASH_MARK = b"glm53-source:"


@dataclass(frozen=True, slots=True)
class Target:
    """One shared library: the files below csrc it is made of, as globs, and how to compile it."""

    name: str
    files: tuple[str, ...]
    compilers: tuple[str, ...]
    suffix: str
    flags: tuple[str, ...]
    optional: bool = False  # built only where its compiler is

    @property
    def library(self) -> str:
        return f"libglm53_{self.name}.so"


CPU = Target("cpu", ("abi.h", "core/*", "cpu/*"), ("g++", "c++", "clang++"), ".cpp", _FLAGS)
CUDA = Target(
    "cuda",
    (
        "core/cache_policy.h",
        "core/copy_box.h",
        "core/expert_runs.h",
        "core/host_device.h",
        "core/mailbox.h",
        "core/trellis_window.h",
        "cuda/*",
    ),
    ("nvcc",),
    ".cu",
    _CUDA_FLAGS,
    optional=True,
)
TARGETS = (CPU, CUDA)


def have_sources() -> bool:
    """True in a checkout or a source distribution, False in an installed wheel."""
    return (CSRC / "abi.h").is_file()


def source_hash(target: Target, csrc: Path = CSRC) -> str:
    """Hex digest of everything that decides what the library does."""
    digest = hashlib.sha256(" ".join(target.flags).encode())
    for path in input_files(target, csrc):
        digest.update(path.relative_to(csrc).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def library_hash(library: Path) -> str | None:
    """The source hash a built library carries, or None when there is no such library."""
    try:
        content = library.read_bytes()
    except FileNotFoundError:
        return None
    at = content.find(_HASH_MARK)
    return None if at < 0 else content[at + len(_HASH_MARK) :][:16].decode("ascii", "replace")


def is_stale(target: Target) -> bool:
    return library_hash(LIB / target.library) != source_hash(target)


def input_files(target: Target, csrc: Path = CSRC) -> Iterator[Path]:
    """Headers and sources of a target, in a fixed order."""
    for pattern in target.files:
        yield from sorted(csrc.glob(pattern))
