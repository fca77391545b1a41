"""What is wrong with a command line is said in our words, for every command and every option."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from glm53ctl import cli, profile, wanted
from glm53ctl.env import Environ, rows
from glm53ctl.errors import UsageError
from glm53ctl.starting import differences

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = re.compile(
    r"Input should|Value error|unable to|validation|\\t|valid (integer|string)|\.$"
)


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of the tree with the words that lead to it."""
    yield path, command
    for name, item in getattr(command, "commands", {}).items():
        yield from commands(item, (*path, name))


COMMAND = typer.main.get_command(cli.build())
# Without the scripts, which read their own options.
TREE = [
    (path, command)
    for path, command in commands(COMMAND)
    if not command.context_settings.get("ignore_unknown_options")
]
WITH_VALUE = [
    (path, max(item.opts, key=len), item)
    for path, command in TREE
    for item in command.params
    if path and item.param_type_name == "option" and not item.is_flag
]


@pytest.fixture
def ask(capsys, monkeypatch, tmp_path):
    """Run a command line that must be a usage error; returns its message and its hint."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("typer.main.get_command", lambda _: COMMAND)  # made once

    def call(*words: str) -> tuple[str, str]:
        assert cli.run(list(words)) == 2, words
        told, _, hint = capsys.readouterr().err.partition("\n  hint  ")
        assert not FOREIGN.search(told), told
        assert hint, told
        return told, hint.rstrip("\n")

    return call


def test_a_mistyped_option_is_recognised_everywhere(ask):
    for path, _ in TREE:
        assert ask(*path, "--hlep")[1] == "did you mean `--help`?"


def test_an_option_without_its_value_points_to_the_help_of_its_command(ask):
    assert len(WITH_VALUE) > 50
    for path, name, _ in WITH_VALUE:
        told, hint = ask(*path, name)
        assert name in told
        assert hint == f"see `glm53ctl {' '.join(path)} --help`"


def test_a_value_of_another_type_is_told_with_what_is_wanted(ask):
    seen = 0
    for path, name, item in WITH_VALUE:
        kind = str(item.type_descriptor.annotation)
        if not re.search(r"int|float|Runtime|Enum", kind):
            continue
        seen += 1
        told, _ = ask(*path, name, "10M")
        assert f"{name} '10M': must be" in told
    assert seen > 15


@pytest.mark.parametrize(
    ("line", "told", "hint"),
    [("emit", "missing FORMAT: systemd, compose, quadlet, docker-run, litellm, sglang or vllm", "emit --help"),
     ("emit foo", "FORMAT 'foo': must be systemd, compose,", "emit --help"),
     ("emit sglan", "'sglan'", "`sglang`"),
     ("up --port abc", "--port 'abc': must be a whole number, in digits", "up --help"),
     ("up --port 70000", "--port '70000': must be at most 65535", "up --help"),
     ("up --context-tokens 10M", "'10M': must be a whole number", "up --help"),
     ("up tiny", "`glm53ctl up` takes no 'tiny'", "`--model tiny`"),
     ("up glm-5.3-flash", "takes no", "`--model glm-5.3-flash`"),
     ("models pull tiny", "tiny comes with the package", "`glm53ctl up --model tiny`"),
     ("status second", "takes no 'second'", "`--instance second`"),
     ("models ls", "no such command 'ls'", "`list`"), ("models delete x", "", "`rm`"),
     ("models get", "", "`pull`"), ("config get", "no such command 'get'", "`show`"),
     ("config rm mode", "", "`unset`"), ("config shwo", "", "`show`"),
     ("help exitcodes", "no help for 'exitcodes'", "`glm53ctl help exit-codes`"),
     ("help stop", "", "`glm53ctl help down`"), ("help models ls", "", "`glm53ctl help models list`"),
     ("doctor --only FOO-001", "no check 'FOO-001'", "ids: glm53ctl doctor --list"),
     ("doctor --only GPU-04", "", "did you mean GPU-004?"),
     ("bench --quick --full", "--quick and --full exclude each other", "one of them")],
)  # fmt: skip
def test_what_was_meant(ask, line, told, hint):
    found = ask(*line.split())
    assert told in found[0]
    assert hint in found[1]
    if "FOO" in line:
        assert "did you mean" not in found[1]


def test_help_of_a_command_is_what_its_option_shows(capsys):
    for path, _ in TREE:
        if path:
            assert cli.run([*path, "--help"]) == 0
            shown = capsys.readouterr().out
            assert cli.run(["help", *path]) == 0
            assert capsys.readouterr().out.strip() == shown.strip()


@pytest.mark.parametrize("value", ["7", "1.5", "true", "'many'", "[1]", "1979-05-27"])
def test_no_setting_of_a_file_is_refused_in_other_words(tmp_path, value):
    file = tmp_path / "config.toml"
    for row in rows():
        section, _, leaf = row.key.rpartition(".")
        file.write_text((f"[{section}]\n" if section else "") + f"{leaf} = {value}\n")
        environ = Environ({"HOME": "/nonexistent", "GLM53_CONFIG": str(file)})
        told = refusal(environ)
        assert told is None or f"is not a value for {row.key}: must " in told
        assert not FOREIGN.search(told or "")


def refusal(environ: Environ) -> str | None:
    try:
        profile.load({}, environ=environ)
    except UsageError as err:
        return err.message
    return None


def test_words_for_a_choice():
    assert wanted.choices("Value error, 'x' is not one of 'a', 'b-c'.") == ("a", "b-c")
    assert wanted.either(["a"]) == "a"
    assert wanted.either(("a", "b", "c")) == "a, b or c"


def test_a_difference_of_plans_says_not_set_as_config_does():
    from glm53ctl.starting import _flat

    old, new = _flat({"listen": {"key": None}}), _flat({"listen": {"key": "/k"}})
    assert differences(old, new) == ["listen.key (not set) → /k"]


def test_make_help_lists_every_target():
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    shown = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True,
        env={"PATH": os.environ["PATH"]},
    ).stdout  # fmt: skip
    rows_shown = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert list(rows_shown) == phony[1].split()
