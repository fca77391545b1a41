"""Everything a user reads: data on stdout, talk and errors on stderr, JSON when asked for.

The only place that prints. Text is printed verbatim (names with brackets are data, not markup);
colour never carries meaning alone, and glyphs fall back to ASCII where the encoding lacks them.
"""

from __future__ import annotations

import json
import sys
from contextvars import ContextVar
from dataclasses import asdict, dataclass, is_dataclass
from typing import TYPE_CHECKING, Any, TextIO, cast

from glm53ctl.env import GIB, Environ
from glm53ctl.errors import Glm53Error, UsageError

if TYPE_CHECKING:
    from rich.console import Console

_CODES = {"green": "32", "yellow": "33", "red": "31", "cyan": "36", "dim": "2", "bold": "1"}
GLYPHS = {
    "pass": ("✔", "[ok]", "green"),
    "warn": ("!", "[warn]", "yellow"),
    "fail": ("✘", "[FAIL]", "red"),
    "skip": ("·", "[skip]", "dim"),
    "unknown": ("?", "[??]", "cyan"),
    "ignored": ("·", "[ign]", "dim"),
}


@dataclass(frozen=True, slots=True)
class Look:
    """How to print on one stream."""

    colour: bool
    unicode: bool
    live: bool  # a terminal where a line may be redrawn
    debug: bool = False

    def paint(self, text: str, colour: str) -> str:
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if self.colour else text

    def glyph(self, status: str) -> str:
        symbol, plain, colour = GLYPHS[status]
        return self.paint(symbol if self.unicode else plain, colour)


# (colour, debug) of the running command line; a context variable, so that tests do not meet.
_FLAGS: ContextVar[tuple[str, bool]] = ContextVar("root flags", default=("auto", False))


def set_flags(*, colour: str, debug: bool) -> None:
    """Remember the root command's flags for everything printed in this context."""
    if colour not in {"auto", "always", "never"}:
        raise UsageError(f"--color {colour!r}: auto, always or never")
    _FLAGS.set((colour, debug))


def wants_colour(environ: Environ, *, terminal: bool, flag: str = "auto") -> bool:
    """Whether to colour: flag, NO_COLOR, FORCE_COLOR, CLICOLOR, terminal, in this order."""
    if flag in {"always", "never"}:
        return flag == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.flag("FORCE_COLOR") or environ.flag("CLICOLOR_FORCE"):
        return True
    if environ.get("CLICOLOR") == "0":
        return False
    return terminal and environ.get("TERM") != "dumb"


def look(
    stream: TextIO | None = None, environ: Environ | None = None, *, colour: str | None = None
) -> Look:
    """How to print on a stream (stdout by default), from the environment and the root flags."""
    stream = _or_stdout(stream)
    environ = environ or Environ.current()
    flags = _FLAGS.get()
    terminal = stream.isatty()
    encoding = (getattr(stream, "encoding", None) or "ascii").lower()
    return Look(
        colour=wants_colour(environ, terminal=terminal, flag=colour or flags[0]),
        unicode=_encodes("✔✘·█", encoding),
        live=terminal and environ.get("TERM") != "dumb" and not environ.flag("CI"),
        debug=flags[1],
    )


def console(stream: TextIO | None = None) -> Console:
    """A rich console that obeys `look`. Pass it Text objects, never markup."""
    from rich.console import Console

    stream = _or_stdout(stream)
    mine = look(stream)
    return Console(
        file=stream,
        force_terminal=mine.live,
        no_color=not mine.colour,
        color_system="standard" if mine.colour else None,
        width=None if stream.isatty() else 10_000,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=not stream.isatty(),
    )


def emit(text: str) -> None:
    """Data: one piece of text on stdout, at once also into a pipe: who reads along waits for it."""
    print(_printable(text, sys.stdout), flush=True)


def say(text: str) -> None:
    """Talk: one line on stderr."""
    print(_printable(text, sys.stderr), file=sys.stderr)


def emit_json(value: object) -> None:
    """One JSON document on stdout; dataclasses become objects."""
    body: Any = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    text = json.dumps(body, indent=2, ensure_ascii=False, default=str)
    if not (look().unicode and _encodes(text, "utf-8")):  # a file name may be no text
        text = json.dumps(body, indent=2, default=str)
    print(text, flush=True)


def plain(text: object) -> str:
    """One line of text that may hold names of others: what a terminal would obey is spelled out."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in str(text)
    )


def _plain_lines(text: str) -> str:
    return "\n".join(plain(line) for line in text.split("\n"))


def warn(text: str) -> None:
    mine = look(sys.stderr)
    say(f"{mine.paint('warning', 'yellow')}: {plain(text)}")


def show_error(err: Glm53Error, *, as_json: bool = False) -> None:
    """One error: id, message, and the way out. With `as_json` stdout gets a document as well."""
    if as_json:
        emit_json({"schema": "glm53ctl.error/1", "ok": False, **error_fields(err)})
    mine = look(sys.stderr)
    say(f"{mine.paint('error', 'red')}[{err.error_id}]: {_plain_lines(err.message)}")
    for number, line in enumerate((err.hint or "").splitlines()):
        say(f"  {'hint ' if number == 0 else '     '} {plain(line)}")


def error_fields(err: Glm53Error) -> dict[str, Any]:
    """An error's part of a JSON document."""
    error = {"id": err.error_id, "message": err.message, "hint": err.hint}
    return {"error": error, "exit_code": err.exit_code}


def gib(count: float) -> str:
    """Memory as people read it: "23.2 GiB", "64 MiB"."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / (1 << 20):.0f} MiB"


def gigabytes(count: float) -> str:
    """Disk, network and rates: "125.3 GB", "57 MB"."""
    return f"{count / 1e6:.0f} MB" if 0 < count < 1e8 else f"{count / 1e9:.1f} GB"


def bar(share: float, width: int, *, unicode: bool) -> str:
    """A filled bar of `width` cells."""
    full = round(max(0.0, min(1.0, share)) * width)
    on, off = ("█", "░") if unicode else ("#", ".")
    return on * full + off * (width - full)


def columns(rows: list[tuple[str, ...]], *, indent: str = "  ") -> list[str]:
    """Rows as aligned lines; the last column is never cut or padded."""
    if not rows:
        return []
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]) - 1)]
    return [
        indent
        + "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]
        )
        for row in rows
    ]


def _or_stdout(stream: TextIO | None) -> TextIO:
    return cast("TextIO", sys.stdout) if stream is None else stream


def _encodes(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _printable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "ascii"
    return text.encode(encoding, "replace").decode(encoding)
