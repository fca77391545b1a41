"""`make check`: the linters and the type checker, one after the other, all of them even after a failure.

python scripts/check.py [FILE...]      with files: ruff and pyright look at these only
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("glm53ctl", "server", "kernels/glm53_kernels", "scripts", "tests", "bench")


def commands(files: list[str]) -> dict[str, list[str]]:
    """What to run, by name; the tools are those of the running Python's environment."""
    tools = Path(sys.executable).parent
    sources = files or [name for name in SOURCES if (ROOT / name).is_dir()]
    found = {
        "ruff check": [str(tools / "ruff"), "check", *sources],
        "ruff format": [str(tools / "ruff"), "format", "--check", *sources],
        "pyright": [str(tools / "pyright"), *files],
    }
    if not files:
        found["import-linter"] = [str(tools / "lint-imports"), "--no-cache"]
    return found


def main() -> int:
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "server", ROOT / "kernels"))),
    }
    failed: list[str] = []
    for name, argv in commands(sys.argv[1:]).items():
        started = time.monotonic()
        result = subprocess.run(
            argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )
        verdict = "ok" if result.returncode == 0 else "FAILED"
        print(f"{name:<14} {verdict:<7} {time.monotonic() - started:5.1f} s", flush=True)
        if result.returncode:
            failed.append(name)
            print(result.stdout + result.stderr, flush=True)
    if failed:
        print(f"check failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
