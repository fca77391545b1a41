"""Rewrite the golden files of the pure tests from the code as it is. Review the difference.

python scripts/make_golden.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "pure"
GOLDEN = TESTS / "golden"


def write(name: str, answer: Callable[[str, Path], object]) -> None:
    """One golden file: an answer per recorded machine."""
    from recorded_machines import MACHINES

    found: dict[str, object] = {}
    for machine in MACHINES:
        with tempfile.TemporaryDirectory() as folder:
            found[machine] = answer(machine, Path(folder))
    GOLDEN.mkdir(exist_ok=True)
    text = json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    (GOLDEN / name).write_text(text, encoding="utf-8")
    print(f"wrote {GOLDEN / name}")


def write_texts(folder: str, found: dict[str, str]) -> None:
    """A golden folder: one file per text."""
    (GOLDEN / folder).mkdir(parents=True, exist_ok=True)
    for name, text in found.items():
        (GOLDEN / folder / name).write_text(text, encoding="utf-8")
    print(f"wrote {len(found)} files in {GOLDEN / folder}")


def main() -> None:
    sys.path[:0] = [str(ROOT), str(TESTS)]
    from test_doctor_machines import diagnosis
    from test_emit_formats import texts
    from test_planner_machines import decision

    write("plans.json", decision)
    write("doctor.json", diagnosis)
    with tempfile.TemporaryDirectory() as folder:
        write_texts("emit", texts(Path(folder)))


if __name__ == "__main__":
    main()
