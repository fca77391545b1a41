"""Printing: colour rules, glyph fallback, and text that is never markup."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm53ctl import render
from glm53ctl.env import Environ
from glm53ctl.errors import UsageError
from glm53ctl.redact import redact


@pytest.mark.parametrize(
    ("environ", "terminal", "flag", "expected"),
    [
        ({}, True, "auto", True),
        ({}, False, "auto", False),
        ({"TERM": "dumb"}, True, "auto", False),
        ({"NO_COLOR": "1"}, True, "auto", False),
        ({"NO_COLOR": ""}, True, "auto", True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, "auto", False),
        ({"FORCE_COLOR": "1"}, False, "auto", True),
        ({"FORCE_COLOR": "0"}, False, "auto", False),
        ({"FORCE_COLOR": "false"}, True, "auto", True),
        ({"CLICOLOR_FORCE": "1"}, False, "auto", True),
        ({"CLICOLOR": "0"}, True, "auto", False),
        ({"NO_COLOR": "1"}, False, "always", True),
        ({"FORCE_COLOR": "1"}, True, "never", False),
    ],
)
def test_colour_is_decided_once_by_one_order(environ, terminal, flag, expected):
    assert render.wants_colour(Environ(environ), terminal=terminal, flag=flag) is expected


def stream(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding)


def test_glyphs_fall_back_where_the_encoding_lacks_them():
    assert render.look(stream("utf-8"), Environ({})).glyph("pass") == "✔"
    assert render.look(stream("latin-1"), Environ({})).glyph("fail") == "[FAIL]"


def test_colour_never_carries_meaning_alone():
    plain = render.Look(colour=False, unicode=False, live=False)
    assert len({plain.glyph(status) for status in render.GLYPHS}) == len(render.GLYPHS)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), max_size=40))
def test_D13_text_with_brackets_is_printed_verbatim(text):
    name = f"[/opt/x]{text}[docs]"
    look = render.Look(colour=False, unicode=True, live=False)
    assert look.paint(name, "red") == name
    assert render.columns([(name, text)])[0] == f"  {name}  {text}"


def test_D13_a_rich_console_takes_text_as_text():
    from rich.text import Text

    target = stream("utf-8")
    console = render.console(target)
    long = "GPU-52a3a85d-3c55-ca3a-a955-82c69ed360fc " * 10
    console.print(Text(f"[/opt/x] [docs] {long}"))
    target.seek(0)
    assert f"[/opt/x] [docs] {long.strip()}" in target.read().rstrip()


def test_an_unknown_colour_flag_is_refused():
    with pytest.raises(UsageError, match="auto, always or never"):
        render.set_flags(colour="red", debug=False)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 MiB"), (64 << 20, "64 MiB"), (1 << 30, "1.0 GiB"), (25_757_220_864, "24.0 GiB")],
)
def test_memory_is_shown_in_binary_units(count, text):
    assert render.gib(count) == text


@pytest.mark.parametrize("share", [-1.0, 0.0, 0.5, 1.0, 7.0])
def test_a_bar_keeps_its_width(share):
    assert len(render.bar(share, 24, unicode=True)) == 24


@pytest.mark.parametrize(
    "text",
    [
        "token hf_" + "a" * 34,
        "--api-key sk-sentinel-1",
        "Authorization: Bearer abc.def-ghi",
        "GET /v1?token=topsecretvalue&x=1",
        "https://me:topsecretvalue@host/",
    ],
)
def test_T072_what_looks_like_a_secret_is_masked(text):
    masked = redact(text)
    assert render_secret(text) not in masked
    assert "[redacted]" in masked


def render_secret(text: str) -> str:
    """The secret part of a line above."""
    return next(
        part
        for part in ("hf_" + "a" * 34, "sk-sentinel-1", "abc.def-ghi", "topsecretvalue")
        if part in text
    )


def test_known_secrets_are_masked_wherever_they_are():
    assert redact("x correct-horse y", secrets=("correct-horse",)) == "x [redacted] y"
