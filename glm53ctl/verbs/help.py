"""`glm53ctl help TOPIC`: pages made from the tables that the code itself uses."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Topic(StrEnum):
    EXIT_CODES = "exit-codes"
    ENVIRONMENT = "environment"
    FILES = "files"
    MODES = "modes"


def help(topic: Annotated[Topic | None, typer.Argument(help="Which page.")] = None) -> None:
    """Explain exit codes, environment variables, files or modes."""
    from glm53ctl import help_pages, render

    if topic is None:
        render.emit("topics: " + ", ".join(Topic))
        return
    pages = {
        Topic.EXIT_CODES: help_pages.exit_codes,
        Topic.ENVIRONMENT: help_pages.environment,
        Topic.FILES: help_pages.files,
        Topic.MODES: help_pages.modes,
    }
    render.emit("\n".join(pages[topic]()))
