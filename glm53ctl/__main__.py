"""`glm53ctl` and `python -m glm53ctl`: the only place where an error becomes an exit code."""

from __future__ import annotations

import sys


def main() -> None:
    arguments = sys.argv[1:]
    if arguments == ["--version"]:  # answered before typer is imported
        from glm53ctl import __version__

        sys.stdout.write(f"glm53ctl {__version__}\n")
        return
    from glm53ctl.cli import run

    sys.exit(run(arguments))


if __name__ == "__main__":
    main()
