"""Run the native tests on sanitizer builds: ASan + UBSan, then TSan.

    python scripts/check_native.py [address|thread ...]

The sanitizer's runtime must come first in the process, so it is preloaded into the test interpreter.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

from glm53_kernels.build import Sanitizer, build

ROOT = Path(__file__).resolve().parent.parent

_RUNTIME: dict[str, str] = {"address": "libasan.so", "thread": "libtsan.so"}
# What runs the pool on several threads; the rest would only take longer.
_THREADED = "thread or cpus or workers or long_inputs"
_OPTIONS = {
    # Python itself leaves memory behind at exit; only what the library does is of interest.
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


def check(sanitizer: Sanitizer) -> int:
    """Exit status of the tests under one sanitizer."""
    library = build(sanitize=sanitizer)
    # With libstdc++ beside it: Python does not bring one, and ASan looks for its functions at start.
    runtimes = (_file_of(_RUNTIME[sanitizer]), _file_of("libstdc++.so"))
    environment = {
        **os.environ,
        **_OPTIONS,
        "NATIVE_LIBRARY": str(library),
        "LD_PRELOAD": " ".join(runtimes),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/native"]
    if sanitizer == "thread":
        # TSan needs the classic address layout.
        command = ["setarch", platform.machine(), "-R", *command, "-k", _THREADED]
    print(f"== native tests under the {sanitizer} sanitizer", flush=True)
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def _file_of(name: str) -> str:
    command = ["g++", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    chosen: list[Sanitizer] = [s for s in ("address", "thread") if s in sys.argv[1:]] or [
        "address",
        "thread",
    ]
    return max(check(sanitizer) for sanitizer in chosen)


if __name__ == "__main__":
    raise SystemExit(main())
