"""The cases from real bug reports: each id has a test of its name, or a reason why not.

A test carries its id in its name or in a comment of its body (T-052). The count is printed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def ids(text: str) -> list[str]:
    return text.split()


CASES = ids("""
T-001 T-002 T-003 T-005 T-006 T-008 T-009 T-009c T-030 T-028 T-031 T-031b T-032 T-117 T-118
T-020 T-021 T-024 T-010 T-011 T-013 T-013b T-014 T-015 T-016 T-018
T-090 T-091 T-092 T-093 T-094 T-096 T-097 T-098 T-100
T-026 T-027 T-035 T-036 T-037 T-038 T-044 T-045 T-102 T-103 T-104 T-105 T-106
T-050 T-052 T-054 T-055 T-056 T-058 T-060 T-061 T-063 T-064 T-065 T-067 T-068 T-073 T-074 T-076
T-077 T-078 T-079b T-076b T-080 T-081 T-083 T-085 T-086 T-087 T-089
T-040 T-041 T-070 T-072 T-110 T-111 T-112 T-114 T-115 T-119
D-01 D-04 D-05 D-06 D-08 D-09 D-11 D-12 D-13 D-14 D-16 D-17 D-18
""")
NO_TEST_YET: dict[str, str] = {}  # id -> why it cannot have one
UNDER_ANOTHER_NAME = {"D-11": "test_breaker_opens_with_exit_code_9_and_keeps_the_last_reason"}
_ID = re.compile(r"(?<![A-Za-z0-9])([TD])-?(\d{2,3}[a-c]?)(?![0-9A-Za-z])")


def ids_with_tests() -> set[str]:
    """Ids named by test functions, and in comments of test files."""
    found: set[str] = set()
    names = "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    found |= {case for case, name in UNDER_ANOTHER_NAME.items() if f"def {name}(" in names}
    for path in TESTS.rglob("test_*.py"):
        if path.name == Path(__file__).name:
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.lstrip().startswith("def test_") or "# " in line:
                found |= {
                    f"{kind}-{number}" for kind, number in _ID.findall(line.replace("_", " "))
                }
    return found


def test_every_case_is_a_test_or_has_a_reason(capsys):
    tested = ids_with_tests()
    missing = [case for case in CASES if case not in tested]
    covered = len(CASES) - len(missing)
    with capsys.disabled():
        sys.stdout.write(f" cases of bug reports: {covered} of {len(CASES)} are tests ")
    assert [case for case in missing if case not in NO_TEST_YET] == []
