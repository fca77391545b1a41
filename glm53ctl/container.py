"""Entry point of the container image: arguments that are not a verb go to the server's start.

`docker run IMAGE -cs 65536` serves with that option, `docker run IMAGE doctor` is the verb. Nothing is
decided here: settings come from the environment, the plan from the planner.
"""

from __future__ import annotations

import sys

from glm53ctl import cli

START = ("up", "--attach", "--yes")
_ROOT_OPTIONS = frozenset({"-h", "--help", "--version"})


def command_line(arguments: list[str]) -> list[str]:
    """The glm53ctl command line that a container's arguments mean."""
    first = arguments[0] if arguments else ""
    if first in cli.VERBS or first in _ROOT_OPTIONS:
        return arguments
    return [*START, *arguments]


def main() -> None:
    sys.exit(cli.run(command_line(sys.argv[1:])))


if __name__ == "__main__":
    main()
