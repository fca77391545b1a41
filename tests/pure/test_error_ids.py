"""An id is searched for: it names one error or one check, and one way to end."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from glm53ctl import doctor
from glm53ctl.errors import Glm53Error

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from doc_errors import ONE_FINDING, ROOT, SOURCES, Mention, mentions

CHECKS = [spec.id for spec in doctor.SPECS]


@pytest.fixture(scope="module")
def errors() -> dict[str, list[Mention]]:
    found: dict[str, list[Mention]] = defaultdict(list)
    for mention in mentions():
        found[mention.error_id].append(mention)
    assert len(found) > 25
    return found


def test_no_two_checks_share_an_id():
    assert len(CHECKS) > 30
    assert sorted(set(CHECKS)) == sorted(CHECKS)


def test_an_error_and_a_check_share_an_id_only_for_the_same_finding(errors: dict[str, object]):
    assert set(errors) & set(CHECKS) == set(ONE_FINDING)


def test_an_error_s_id_belongs_to_one_class_and_has_one_exit_code(
    errors: dict[str, list[Mention]],
):
    for error_id, found in errors.items():
        classes = [
            item for item in found if item.message.startswith("`")
        ]  # `Name` and its docstring
        exits = {item.exit_code for item in found if item.exit_code is not None}
        assert len(classes) <= 1, (error_id, classes)
        assert len(exits) <= 1, (error_id, exits)


def test_every_id_in_the_sources_is_that_of_an_error_or_a_check(errors: dict[str, object]):
    """So that an id that reaches an error in another way than these tests look for is found."""
    strings = {
        node.value
        for folder in SOURCES
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    ids = {text for text in strings if re.fullmatch(r"[A-Z]{2,5}-\d{3}", text)}
    assert ids - {"AVX-512"} == {*errors, *CHECKS}


def test_an_error_without_an_id_of_its_own_has_that_of_its_class():
    assert Glm53Error("what").error_id == Glm53Error.error_id
    assert Glm53Error("what", error_id="NET-003").error_id == "NET-003"
