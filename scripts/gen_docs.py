"""`make docs`: write the generated pages from the code and fill the README's table of figures.

    python scripts/gen_docs.py [--check]

--check writes nothing and fails, naming every page that is not what the code says.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from doc_errors import ONE_FINDING, error_rows
from doc_figures import HEADLINES, newest, quality_table, table

from glm53ctl import cli, doctor, env
from glm53ctl.errors import EXIT_CODES, ChildExit
from glm53ctl.profile import text_of

ROOT = Path(__file__).resolve().parent.parent
HEAD = "<!-- Written by `make docs` from {source}. Do not edit. -->\n"
BEGIN, END = "<!-- figures: written by `make docs` -->", "<!-- end of figures -->"


def rows_of(*header: str, rows: Iterator[tuple[str, ...]]) -> list[str]:
    """A Markdown table."""
    lines = [list(header), ["---"] * len(header), *(list(row) for row in rows)]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def code(text: str) -> str:
    return f"`{text}`" if text else ""


# Settings


def settings_page() -> str:
    """Every setting, and every variable that is read without being one."""
    rows = (
        (code(row.key), code(row.env), _default(row), row.text, code(row.feeds).replace("`-`", ""))
        for row in env.rows()
    )
    return "\n".join(
        [
            HEAD.format(source="glm53ctl/env.py"),
            "# Settings",
            "",
            "Later wins: default, profile (`profiles/*.toml`), your `config.toml`, environment, flags.",
            "Most settings have a flag of their own; `--set KEY=VALUE` sets any of them for one command and",
            "`glm53ctl config set KEY VALUE` keeps it. `glm53ctl config show` prints each value and where it",
            "comes from. Each key is also read as `GLM53_<SECTION>__<KEY>`, for example `GLM53_LISTEN__PORT`.",
            "An unknown key in a file is refused, an unknown `GLM53_` variable is a warning.",
            "",
            *rows_of("key", "variable", "default", "what it is", "part of the plan", rows=rows),
            "",
            "## Other variables of ours",
            "",
            *rows_of("variable", "what it is", rows=_named(env.OTHER_NAMES)),
            "",
            "## Variables of others that are honoured",
            "",
            *rows_of("variable", "what it does here", rows=_named(env.FOREIGN_NAMES)),
            "",
        ]
    )


def _default(row: env.Row) -> str:
    if row.default is None:
        return "chosen"
    shown = text_of(row.default, row)
    return "none" if shown == "(none)" else code(shown)


def _named(names: dict[str, str]) -> Iterator[tuple[str, str]]:
    return ((code(name), text) for name, text in names.items())


# Exit codes and errors


def exit_codes_page() -> str:
    """Exit codes of the command, of the server process, and every error id."""
    children = (
        (str(int(item)), code(item.name), "no" if item.permanent else "yes", _comment(item))
        for item in ChildExit
    )
    return "\n".join(
        [
            HEAD.format(source="glm53ctl/errors.py, the doctor's checks and every error_id in the sources"),
            "# Exit codes and errors",
            "",
            "An error is one line, `error[ID]: what happened`, and a `hint` with the way out. With `--json` it",
            "is a document on stdout. `--debug` shows the traceback.",
            "",
            "## Exit codes of every verb",
            "",
            *rows_of("code", "meaning", rows=((str(number), text) for number, text in EXIT_CODES)),
            "",
            "A service manager should not restart on 2, 4, 6, 7 and 9: nothing heals by itself.",
            "",
            "## Exit codes of the server process",
            "",
            "The supervisor reads these; you meet them in `glm53ctl logs` and under containers.",
            "",
            *rows_of("code", "name", "restarted", "meaning", rows=children),
            "",
            "## Error ids",
            "",
            *rows_of("id", "exit code", "says", "from", rows=((code(i), number, says, files) for i, number, says, files in error_rows())),
            "",
            "## Checks of the doctor",
            "",
            "`glm53ctl doctor --only ID -v` runs one; `doctor.ignore` keeps one from blocking. An id names one thing:",
            "where an error has the id of a check, the check looks closer at what the error says "
            f"({', '.join(f'{code(i)}: {what}' for i, what in ONE_FINDING.items())}).",
            "",
            *rows_of("id", "area", "looks at", rows=((code(s.id), s.area, s.title) for s in doctor.SPECS)),
            "",
        ]
    )  # fmt: skip


def _comment(item: ChildExit) -> str:
    """The comment behind a member in errors.py."""
    text = (ROOT / "glm53ctl/errors.py").read_text(encoding="utf-8")
    found = re.search(rf"^    {item.name} = \d+  # (.+)$", text, re.MULTILINE)
    return found[1] if found else {"OK": "stopped when asked to", "CRASH": "an unexpected error"}[item.name]  # fmt: skip


# Commands


def commands() -> Iterator[tuple[str, Any]]:
    """(words, command) of every verb and of what is below it, in the order of the root help."""
    root: Any = typer.main.get_command(cli.build())
    yield "glm53ctl", root
    for verb in cli.VERBS:
        if verb in root.commands:
            yield from _below(f"glm53ctl {verb}", root.commands[verb])


def _below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _below(f"{words} {name}", inner)


def cli_page() -> str:
    """The help of every verb."""
    lines = [
        HEAD.format(source="--help of every verb"),
        "# Commands",
        "",
        "Every verb answers `-h`. Data goes to stdout, words about it to stderr; `--json` prints one document.",
    ]
    for words, command in commands():
        lines += ["", f"## {words}" if words.count(" ") < 2 else f"### {words}", ""]
        lines += [*_help(command)]
        rows = [] if words == "glm53ctl" else list(_options(words, command))
        if rows:
            lines += ["", *rows_of("option", "", rows=iter(rows))]
    return "\n".join([*lines, ""])


def _help(command: Any) -> Iterator[str]:
    """The help text; examples as a block."""
    words, _, examples = (command.help or "").partition("Examples:")
    yield " ".join(words.replace("\b", "").split())
    if examples.strip():
        yield from (
            "",
            "```sh",
            *(line.strip() for line in examples.splitlines() if line.strip()),
            "```",
        )


def _options(words: str, command: Any) -> Iterator[tuple[str, str]]:
    """Arguments and options of a command as its own help shows them, -h left out."""
    context = command.make_context(words, [], resilient_parsing=True)
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record and param.name != "help":
            yield code(record[0]), " ".join(record[1].split())


# All pages


def filled(page: Path, figures: str) -> str:
    """A page with what is between its markers replaced. Raises SystemExit without the markers."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page.name} lacks {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n{figures}\n{END}{after}"


def pages() -> dict[Path, str]:
    """Every generated file with what it should hold."""
    front, modes, bench = (
        ROOT / name for name in ("README.md", "docs/modes.md", "docs/benchmarks.md")
    )
    results = newest()
    return {
        ROOT / "docs/settings.md": settings_page(),
        ROOT / "docs/exit-codes.md": exit_codes_page(),
        ROOT / "docs/cli.md": cli_page(),
        front: filled(front, table(results, names=HEADLINES)),
        modes: filled(modes, quality_table(results)),
        bench: filled(bench, table(results, "../")),
    }


def main() -> int:
    stale = [
        path
        for path, wanted in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != wanted
    ]
    for path in stale:
        print(path.relative_to(ROOT))
    if "--check" in sys.argv:
        if stale:
            print("not current: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages()[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
