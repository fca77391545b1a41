"""The one build entry of the native libraries: the wheel hook, `make kernels` and Docker all call it.

    python -m glm53_kernels.build [--if-stale] [--sanitize address|thread]

A sanitizer build goes beside the normal library, into _lib/address or _lib/thread.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from .errors import KernelBuildFailed
from .sources import CPU, CSRC, LIB, TARGETS, Target, input_files, is_stale, source_hash

Sanitizer = Literal["address", "thread"]

_SANITIZE_FLAGS: dict[Sanitizer, tuple[str, ...]] = {
    "address": (
        "-O2",
        "-g",
        "-fno-omit-frame-pointer",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ),
    "thread": ("-O2", "-g", "-fno-omit-frame-pointer", "-fsanitize=thread"),
}


def build(target: Target = CPU, *, sanitize: Sanitizer | None = None) -> Path:
    """Compile one library and put it in place atomically; returns its path.

    Raises KernelBuildFailed (with the compiler's first lines) when there is no compiler or it refuses.
    """
    folder = LIB if sanitize is None else LIB / sanitize
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / target.library
    flags = target.flags + (() if sanitize is None else _SANITIZE_FLAGS[sanitize])
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        built = Path(scratch) / target.library
        sources = [str(p) for p in input_files(target) if p.suffix == target.suffix]
        mark = f'-DGLM53_SOURCE_HASH="{source_hash(target)}"'
        # nvcc names its intermediate files by process number: in a folder of its own they cannot
        # meet another build's.
        private = ["env", f"TMPDIR={scratch}", _compiler(target)]
        _run([*private, *flags, mark, f"-I{CSRC}", "-shared", *sources, "-o", str(built)])
        built.replace(library)
    return library


def _compiler(target: Target) -> str:
    for name in target.compilers:
        if found := shutil.which(name):
            return found
    raise KernelBuildFailed(
        f"no compiler for {target.library}: looked for {', '.join(target.compilers)}",
        hint="install the CUDA toolkit" if target.optional else "apt install g++",
    )


def build_for_setup(target: Target) -> None:
    """Build as part of an installation, which an optional library must not stop: without it the GPU
    modes say what to run. Raises KernelBuildFailed for the others."""
    try:
        build(target)
    except KernelBuildFailed as failed:
        if not target.optional:
            raise
        sys.stderr.write(f"warning: {target.library} was not built: {failed}\n")


def wanted(target: Target) -> bool:
    """False for an optional library whose compiler this host lacks."""
    return not target.optional or any(shutil.which(name) for name in target.compilers)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        head = "\n".join(done.stderr.splitlines()[:20])
        raise KernelBuildFailed(
            f"{Path(command[2]).name} failed with status {done.returncode}:\n{head}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m glm53_kernels.build", description="Build the native libraries."
    )
    parser.add_argument(
        "--if-stale", action="store_true", help="only build what does not match its sources"
    )
    parser.add_argument(
        "--sanitize",
        choices=("address", "thread"),
        help="build beside the normal library, for tests",
    )
    options = parser.parse_args(argv)
    try:
        for target in TARGETS:
            if options.if_stale and not options.sanitize and not is_stale(target):
                continue
            if not wanted(target) or (options.sanitize and target.optional):
                continue
            sys.stderr.write(f"building {target.library}\n")
            if options.if_stale:
                build_for_setup(target)
            else:
                sys.stderr.write(f"built {build(target, sanitize=options.sanitize)}\n")
    except KernelBuildFailed as failed:
        sys.stderr.write(f"error: {failed}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
