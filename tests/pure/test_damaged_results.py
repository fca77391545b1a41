"""A result file with anything wrong in it ends `bench report` and --compare in one typed error."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glm53ctl.bench import saved
from glm53ctl.bench.compare import changes, differences
from glm53ctl.errors import UsageError

FILE = Path(__file__).resolve().parents[2] / "bench/results/2026-11-29-server-fast.json"
DOCUMENT: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
WRONG = (None, 0, -1, "x", [], {}, [None], {"a": 1}, True, 1e308, float("nan"), 10**400, "\u0000")
PANEL = {
    "file": "p.json", "positions": 8, "expected_positions": 8, "mean_kl_top20": 0.1,
    "top1_agreement": 0.9, "worst": [{"prompt": 3, "position": 17, "kl": 5.0}],
    "per_prompt": [{"i": 3, "positions": 96, "kl": 0.8, "top1": 0.41, "greedy_match": 0.9}],
}  # fmt: skip


def places(body: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every value of a document; of a list the first two and the last."""
    items = body.items() if isinstance(body, dict) else enumerate(body)
    for key, value in items:
        if isinstance(body, list) and 1 < key < len(body) - 1:
            continue
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def changed(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A copy with one value replaced, or removed for `...`; only the way to it is copied."""
    found = copy.copy(document)
    at: Any = found
    for key in path[:-1]:
        at[key] = copy.copy(at[key])
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return found


def refusal(file: Path) -> str | None:
    """What the typed error says; None for a file that shows."""
    try:
        saved.read_shown(file)
    except UsageError as err:
        return err.message
    return None


def small() -> dict[str, Any]:
    """The document with few samples, and a panel."""
    return {**DOCUMENT, "samples": DOCUMENT["samples"][:30], "panel": PANEL}


def test_one_wrong_value_anywhere_shows_or_is_refused_by_name(tmp_path):
    document, file = small(), tmp_path / "one.json"
    file.write_text(json.dumps(document))
    right = saved.read_shown(file)
    dice, refused = random.Random(7), 0
    sites = list(places(document))
    shown_parts = [path for path in sites if path[0] in {"sweep", "stream", "panel", "samples"}]
    for path in dice.sample(sites, 30) + dice.sample(shown_parts, 40):
        body = changed(document, path, dice.choice((*WRONG, ...)))
        file.write_text(json.dumps(body))
        said = refusal(file)
        if said is None:
            differences(right, saved.read_shown(file))
            changes(right, saved.read_shown(file))
        else:
            assert str(file) in said
            refused += 1
    assert refused > 15


@pytest.mark.parametrize("value", [None, "x", float("inf"), True, [1]])
@pytest.mark.parametrize(
    ("path", "key"),
    [
        (("sweep", "decode", "C1", "aggregate"), "median"),
        (("sweep", "decode", "C4", "per_stream_mean"), "max"),
        (("sweep", "prefill", "2048"), "min"),
        (("sweep", "ttft_s", "8192"), "n"),
    ],
)
def test_a_figure_that_is_no_number_is_named(tmp_path, path, key, value):
    file = tmp_path / "one.json"
    file.write_text(json.dumps(changed(DOCUMENT, (*path, key), value)))
    with pytest.raises(UsageError) as error:
        saved.read_shown(file)
    assert f"{file}: {'.'.join(path)}.{key} is " in error.value.message


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"[" * 100_000, b'{"schema": ' + b'{"a":' * 100_000, b"null", b"1" * 5000,
     b'{"schema": "glm53ctl.bench/1"}', b'{"schema": "glm53ctl.bench/1", "x": ' + b"[" * 5000,
     json.dumps(DOCUMENT).encode()[:-9], json.dumps(DOCUMENT).encode()[:9000] + b"\x80"],
)  # fmt: skip
def test_what_is_no_result_at_all(tmp_path, content):
    file = tmp_path / "one.json"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"one\.json"):
        saved.read_shown(file)


def test_every_kept_result_shows():
    for path in FILE.parent.glob("*.json"):
        if json.loads(path.read_text(encoding="utf-8")).get("schema") == DOCUMENT["schema"]:
            assert saved.read_shown(path).seconds > 0
