"""Two settings against each other, interleaved as A B B A, so that drift of the machine hits both alike.

Each arm is a server of its own, brought up by the command line with a few settings changed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

from glm53ctl.bench import scripts
from glm53ctl.bench.compare import Change, Figure
from glm53ctl.env import Environ, nearest, rows
from glm53ctl.errors import Glm53Error, UsageError

INSTANCE = "bench-ab"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the two: its letter, and the settings it changes as environment variables."""

    letter: str
    settings: tuple[tuple[str, str], ...]

    @property
    def words(self) -> str:
        return (
            ", ".join(f"{name}={value}" for name, value in self.settings) or "settings as they are"
        )


@dataclass(frozen=True, slots=True)
class Load:
    """How each arm is started and measured."""

    up_flags: tuple[str, ...]
    port: int
    rounds: int = 1  # of A B B A
    repetitions: int = 3
    answer_tokens: int = 128


def parse(letter: str, text: str) -> Arm:
    """An arm from `cpu.threads=4,vram.elastic_gib=6` (or GLM53_ names). Raises UsageError."""
    names = {row.key: row.env for row in rows()} | {row.env: row.env for row in rows()}
    found: list[tuple[str, str]] = []
    for part in filter(None, (item.strip() for item in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or key not in names:
            close = nearest(key, set(names))
            hint = f"did you mean {close!r}?" if close else "see `glm53ctl config show`"
            raise UsageError(f"{part!r} is not KEY=VALUE of a setting", hint=hint)
        found.append((names[key], value))
    return Arm(letter, tuple(found))


def order(rounds: int) -> str:
    """`ABBA` as often as asked."""
    return "ABBA" * rounds


def run(arms: tuple[Arm, Arm], load: Load, environ: Environ, say: Say) -> dict[str, list[float]]:
    """Decode rates of one stream by arm, all repetitions in the order they were measured."""
    by_letter = {arm.letter: arm for arm in arms}
    found: dict[str, list[float]] = {arm.letter: [] for arm in arms}
    for letter in order(load.rounds):
        arm = by_letter[letter]
        say(f"{letter}  {arm.words}")
        with _served(arm, load, environ) as url:
            found[letter] += _rates(url, load, say)
    return found


@contextmanager
def _served(arm: Arm, load: Load, environ: Environ) -> Generator[str]:
    variables = {**environ.values, **dict(arm.settings)}
    where = ("--instance", INSTANCE)
    up = ["up", "--quiet", *where, "--port", str(load.port), *load.up_flags]
    try:
        done = _cli(up, variables)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise Glm53Error(
                f"arm {arm.letter} ({arm.words}) did not start: {lines[-1].strip()}",
                hint="glm53ctl down: two servers may not fit beside each other",
            )
        yield done.stdout.strip().removesuffix("/v1")
    finally:
        _cli(["down", "--force", *where], variables)


def _cli(words: Sequence[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "glm53ctl", *words],
        env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip


def _rates(url: str, load: Load, say: Say) -> list[float]:
    done = scripts.run(
        scripts.SWEEP,
        ["--url", url, "--card", "ab", "--config", "ab", "--prefill", "--conc", "1",
         "--dec-reps", str(load.repetitions), "--max-tokens", str(load.answer_tokens)],
        lambda line: say(f"   {line}"),
    )  # fmt: skip
    if done.document is None or "C1" not in done.document["decode"]:
        raise Glm53Error(f"the sweep failed: {done.complaint}")
    return cast("list[float]", done.document["decode"]["C1"]["aggregate"]["all"])


def change(found: dict[str, list[float]]) -> Change:
    """B against A."""
    return Change(_figure(found["B"]), _figure(found["A"]))


def document(arms: tuple[Arm, Arm], found: dict[str, list[float]]) -> dict[str, Any]:
    """The JSON of `bench ab`."""
    result = change(found)
    return {
        "schema": "glm53ctl.bench-ab/1",
        "order": order(1),
        "arms": {arm.letter: {"settings": dict(arm.settings), "tok_per_s": found[arm.letter]} for arm in arms},
        "change": round(result.share, 4),
        "outside_noise": result.outside_noise,
    }  # fmt: skip


def _figure(values: list[float]) -> Figure:
    return Figure("decode C1", median(values), min(values), max(values), len(values), "tok/s")
