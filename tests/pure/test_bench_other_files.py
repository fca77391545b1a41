"""`bench report` and `--compare` on documents that are no result of `glm53ctl bench`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glm53ctl.bench import result as results
from glm53ctl.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
OTHER_KINDS = {
    "another version": ('{"schema": "glm53ctl.bench/9"}', "has schema 'glm53ctl.bench/9'", "another version"),
    "a script of bench/": (
        '{"schema": "glm53ctl.bench.x/1", "command": "python3 bench/x.py\\n--a"}',
        "has schema 'glm53ctl.bench.x/1'",
        "the figures of `python3 bench/x.py --a`",
    ),
    "another verb": ('{"schema": "glm53ctl.doctor/1"}', "has schema 'glm53ctl.doctor/1'", "glm53ctl bench --out FILE"),
    "no schema": ("{}", "names no schema", "glm53ctl bench --out FILE"),
    "no command": ('{"command": " \\n"}', "names no schema", "measure one: glm53ctl bench --out FILE"),
    "no word": ('{"schema": [1], "command": {}}', "names no schema", "glm53ctl bench --out FILE"),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_a_document_of_another_kind_is_named_with_what_to_run(kind: str):
    body, named, way_out = OTHER_KINDS[kind]
    with pytest.raises(UsageError) as refused:
        results.from_json(body, "a file")
    assert named in refused.value.message
    assert results.SCHEMA in refused.value.message
    assert way_out in (refused.value.hint or "")
    assert "python3 -m json.tool 'a file'" in (refused.value.hint or "")


@pytest.mark.parametrize("body", ["null", "[1]", '"glm53ctl.bench/1"', "1", "NaN", "true"])
def test_json_that_is_no_document_is_said_in_words(body: str):
    with pytest.raises(UsageError, match="a file is not a bench result: it is JSON, but no object"):
        results.from_json(body, "a file")


def test_every_recorded_measurement_is_a_result_or_says_what_it_is():
    files = sorted((ROOT / "bench/results").glob("*.json"))
    assert len(files) > 20
    for path in files:
        body = json.loads(path.read_text("utf-8"))
        if body.get("schema") == results.SCHEMA:
            assert results.read(path).schema == results.SCHEMA
            continue
        with pytest.raises(UsageError) as refused:
            results.read(path)
        assert refused.value.hint is not None
        if "command" in body:
            assert body["command"][:40] in refused.value.hint
