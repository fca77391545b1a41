"""`glm53ctl help TOPIC`: pages made from the tables that the code itself uses, and help of verbs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from glm53ctl.verbs import complete


class Topic(StrEnum):
    EXIT_CODES = "exit-codes"
    ENVIRONMENT = "environment"
    FILES = "files"
    MODES = "modes"


def help(
    ctx: typer.Context,
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC]",
            help="exit-codes, environment, files, modes; or a command.",
            autocompletion=complete.topics,
        ),
    ] = None,
    command: Annotated[
        str | None, typer.Argument(metavar="[COMMAND]", help="Of a group: models pull.")
    ] = None,
) -> None:
    """Explain exit codes, environment variables, files, modes or a command."""
    from glm53ctl import help_pages, render

    if topic is None:
        render.emit("topics: " + ", ".join(Topic) + "; or a command: glm53ctl help up")
        return
    pages = {
        Topic.EXIT_CODES: help_pages.exit_codes,
        Topic.ENVIRONMENT: help_pages.environment,
        Topic.FILES: help_pages.files,
        Topic.MODES: help_pages.modes,
    }
    if command is None and topic in list(Topic):
        render.emit("\n".join(pages[Topic(topic)]()))
    else:
        render.emit(_help_of(ctx, [topic, *([command] if command else [])]))


def _help_of(ctx: Any, words: list[str]) -> str:
    """The help of a command, given as one or two words. Raises UsageError for others."""
    from glm53ctl.complaints import command_meant
    from glm53ctl.errors import UsageError

    found = ctx.find_root()
    for number, word in enumerate(words):
        known = getattr(found.command, "commands", {})
        if word not in known:
            before = "".join(f"{item} " for item in words[:number])
            close = command_meant(word, [*known, *(() if number else Topic)])
            raise UsageError(
                f"no help for {before + word!r}",
                hint=f"did you mean `glm53ctl help {before}{close}`?"
                if close
                else "see `glm53ctl help` and `glm53ctl --help`",
            )
        found = type(found)(known[word], info_name=word, parent=found)
    return str(found.command.get_help(found)).rstrip()
