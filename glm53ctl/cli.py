"""The command line: one row per verb, each a thin function in `verbs/`.

Verb modules import typer and nothing heavy, so `--help` stays fast. `run` turns every error into
one message and one documented exit code.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import traceback
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from glm53ctl import __version__, complaints, crash, render
from glm53ctl.errors import Glm53Error

# A module glm53ctl.verbs.<name> has a function <name>, or a typer `app` for a group of verbs.
PANELS = {
    "Start here": ("doctor", "plan", "up", "status", "bench"),
    "Operate": ("down", "restart", "logs", "serve", "config", "models"),
    "Deploy": ("emit", "upgrade", "rollback"),
    "Help out": ("report", "version", "help"),
}
VERBS = tuple(name for names in PANELS.values() for name in names)
# typer carries its own copy of click or uses the installed one; both are reached through typer.
_ClickError = cast(
    "type[Exception]",
    next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"),
)


ROOT_OPTIONS = (
    ("--version", "Print the version and end."),
    ("--debug", "Show tracebacks of errors."),
    ("--color WHEN", "auto, always or never; also NO_COLOR."),
    ("--install-completion", "Complete commands and options in this shell."),
    ("-h, --help", "Show help; every command has its own."),
)


class _Root(TyperGroup):
    """Lists the verbs by panel, in the order of a first day with the tool, on one screen."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        with formatter.section("Options"):
            formatter.write_dl(ROOT_OPTIONS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for panel, names in PANELS.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            rows = [(name, _first_clause(command.help or "")) for name, command in found if command]
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)


def _first_clause(text: str) -> str:
    """The beginning of a help text, up to its first full stop, colon or semicolon."""
    return re.split(r"[.:;](?:\s|$)", text.strip(), maxsplit=1)[0].replace("\n", " ")


def build() -> typer.Typer:
    """The application with every verb registered."""
    app = typer.Typer(
        name="glm53ctl",
        help="Run GLM-5.3-Flash on one NVIDIA card and host RAM.",
        cls=_Root,
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_root)
    for name in VERBS:
        if importlib.util.find_spec(f"glm53ctl.verbs.{name}") is None:
            continue
        module = importlib.import_module(f"glm53ctl.verbs.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name))
    return app


def _version(asked: bool) -> None:
    if asked:
        render.emit(f"glm53ctl {__version__}")
        raise typer.Exit


def _root(
    *,
    version: Annotated[  # noqa: ARG001 - answered by its callback
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_version, help="Print the version and end."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    color: Annotated[str, typer.Option(help="auto, always or never.", metavar="WHEN")] = "auto",
) -> None:
    render.set_flags(colour=color, debug=debug)


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    as_json = "--json" in arguments
    debug = "--debug" in arguments
    command: Any = None
    try:
        command = typer.main.get_command(build())
        result: Any = command.main(
            args=_root_flags_first(arguments), prog_name="glm53ctl", standalone_mode=False
        )
    except Glm53Error as err:
        if debug:
            traceback.print_exc()
        render.show_error(err, as_json=as_json)
        return err.exit_code
    except _ClickError as err:
        complaint: Any = err
        if type(err).__name__ == "NoArgsIsHelpError":
            render.emit(complaint.format_message())
            return 0
        error = complaints.usage_error(complaint, command, arguments)
        render.show_error(error, as_json=as_json)
        return 2
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # The reader of our output is gone (`| head`): no second complaint at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as err:
        if debug:
            raise
        render.show_error(crash.bug(err), as_json=as_json)
        return 1
    return result if isinstance(result, int) else 0


def _root_flags_first(arguments: list[str]) -> list[str]:
    """Accept --debug, --no-color and --color=WHEN anywhere, as people type them."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    root: list[str] = []
    rest: list[str] = []
    for item in arguments[:cut]:
        if item == "--debug" or item.startswith("--color="):
            root.append(item)
        elif item == "--no-color":
            root.append("--color=never")
        else:
            rest.append(item)
    return [*root, *rest, *arguments[cut:]]
