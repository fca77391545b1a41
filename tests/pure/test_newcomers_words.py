"""Small words that people check against each other: sizes, numbers of one, where a setting is from."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_machines import record

from glm53ctl import choose, doctor, help_pages, limits, start_view, status_view
from glm53ctl.checkpoint import FLASH
from glm53ctl.env import GIB
from glm53ctl.limits import arena_bytes, arena_words
from glm53ctl.render import Look, gib
from glm53ctl.supervisor.state import Instance
from glm53ctl.verbs import up
from glm53ctl.words import counted

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 threads"), (1, "1 thread"), (2, "2 threads"), (22, "22 threads")]
)
def test_one_has_no_plural(count, words):
    assert counted(count, "thread") == words


def test_the_experts_size_is_told_with_and_without_its_slack():
    assert gib(FLASH.expert_total_bytes) == "106.3 GiB"
    assert gib(arena_bytes(FLASH)) == "109.5 GiB"
    assert arena_words(FLASH) == "106.3 GiB and 3 % of slack"
    assert arena_words(replace(FLASH, expert_total_bytes=6 << 20)) == "6 MiB and 3 % of slack"


@pytest.mark.parametrize(
    "page",
    ["README.md", "docs/modes.md", "docs/how-it-works.md", "docs/troubleshooting.md"],
)
def test_pages_that_have_one_size_of_the_experts_have_the_other(page):
    """106 GiB are read, 109.5 GiB are planned with: one without the other is a riddle."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "106" in text
    assert f"{arena_bytes(FLASH) / GIB:.1f}" in text
    assert f"{limits.ARENA_SLACK_PERCENT} % of slack" in " ".join(text.split())


def test_the_sum_that_pages_give_is_that_of_the_plan():
    needed = (arena_bytes(FLASH) + FLASH.resident_bytes) / GIB
    for page in ("README.md", "docs/modes.md", "docs/adr/0006-one-copy.md"):
        found = re.findall(r"(\d+) GiB and a margin", (ROOT / page).read_text(encoding="utf-8"))
        assert str(round(needed)) in found


def test_doctor_tells_both_sizes_where_they_do_not_fit(tmp_path):
    system = record(tmp_path, total_gib=64, available_gib=60)
    report = doctor.examine(choose.PlanOptions(), system, only=["RAM-001"])
    (check,) = report.checks
    assert check.finding.required == (
        "109.5 GiB for the experts alone (106.3 GiB and 3 % of slack)"
    )


def test_help_says_of_auto_what_the_planner_does():
    """A tie goes to exact, whose answers are the very bits of stock exllamav3."""
    for text in (
        "\n".join(help_pages.modes()),
        (ROOT / "README.md").read_text(encoding="utf-8"),
        (ROOT / "docs/modes.md").read_text(encoding="utf-8"),
    ):
        assert "predicted to be no slower" in text
        assert "predicted to be faster" not in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "all at their defaults"),
        ({"profile": "auto"}, "all at their defaults"),
        ({"profile": "fast"}, "from profile fast"),
        ({"model": "tiny"}, "from --model"),
        ({"model": "tiny", "model_of": "the running server"}, "from the running server"),
        ({"sets": ["limits.max_batch=2"]}, "from --set limits.max_batch"),
        ({"mode": "cpu", "profile": "exact"}, "from --mode"),
    ],
)
def test_doctor_says_what_gave_settings_and_nothing_that_did_not(tmp_path, options, words):
    system = record(tmp_path, cores=4)
    report = doctor.examine(choose.PlanOptions(**options), system, only=["CFG-001"])
    assert report.checks[0].finding.observed.startswith(words)


def test_a_phase_that_begins_is_told_with_its_time_and_no_bar(capsys):
    """`import 0.1 s` read like how long the import took, `7 %` like where the load ended."""
    view = start_view.StartView()
    record = {"phase": "starting", "progress": {"phase": "weights", "done": 1, "total": 14}}
    view(record)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r" loading: weights  \(after \d+\.\d s\)", line)
    view(record)
    assert capsys.readouterr().err == ""
    view._shown_at -= start_view._PLAIN_PERIOD_S + 1  # time passes
    view(record)
    assert "1/14" in capsys.readouterr().err


def test_a_server_that_is_up_is_as_old_as_status_says(capsys):
    """The time since it serves, not since its supervisor began to load it."""
    record = {"url": "http://127.0.0.1:1", "model": "tiny", "uptime_s": 125.0, "phase_s": 61.0}
    up._say_ready(Instance.locate("x", folder=Path("/x"), runtime_dir=Path("/x")), record, True)
    assert "already up with this plan (1m01s), ready" in capsys.readouterr().out
    headline = status_view.headline(
        {**record, "instance": "x", "phase": "ready", "health": "ok", "mode": "cpu", "restarts": 0},
        Look(colour=False, unicode=False, live=False),
    )
    assert "serving 1m01s" in headline
