"""The stand-alone bench scripts, run by path in a process of their own.

They use the standard library only and import nothing of ours, so what a user runs by hand and what
`glm53ctl bench` runs is the same file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glm53ctl.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent.parent
PANEL, STREAM, SWEEP = "score_ref_panel.py", "stream_rate.py", "sweep.py"
DECODE_KL, RECORD = "decode_kl.py", "record_panel.py"


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """How a script ended: its result document, if it wrote one, and its last words."""

    code: int
    document: dict[str, Any] | None
    complaint: str


def scripts_dir() -> Path:
    """The scripts: inside an installed wheel, or in a checkout's bench/."""
    shipped = _PACKAGE / "_bench"
    return shipped if shipped.is_dir() else _PACKAGE.parent / "bench"


def script(name: str) -> Path:
    """Path of a script. Raises UsageError when this installation does not have it."""
    path = scripts_dir() / name
    if not path.is_file():
        raise UsageError(
            f"{path} is missing", hint="reinstall glm53ctl: its bench scripts are gone"
        )
    return path


def run(name: str, arguments: Sequence[str], on_line: Callable[[str], None]) -> ScriptResult:
    """Run a script that takes --out; `on_line` gets what it says on stderr while it works."""
    with tempfile.TemporaryDirectory(prefix="glm53-bench-") as folder:
        out = Path(folder) / "out.json"
        line = [sys.executable, str(script(name)), *arguments, "--out", str(out)]
        said: list[str] = []
        with subprocess.Popen(
            line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            try:
                for text in process.stderr:
                    said.append(text.rstrip())
                    on_line(said[-1])
            except BaseException:
                process.kill()
                raise
        document = json.loads(out.read_text(encoding="utf-8")) if out.exists() else None
    complaint = next((text for text in reversed(said) if text), f"exit code {process.returncode}")
    return ScriptResult(process.returncode, document, complaint.removeprefix("error: "))


def run_through(name: str, arguments: Sequence[str]) -> int:
    """Run a script on our own standard streams; returns its exit code."""
    return subprocess.run([sys.executable, str(script(name)), *arguments], check=False).returncode
