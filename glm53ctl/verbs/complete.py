"""What the shell offers for values of options. Reads names of files at most: no driver, no server, no network."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

_GPU_FOLDER = Path("/proc/driver/nvidia/gpus")


def modes(incomplete: str) -> list[str]:
    from glm53ctl.plan import Mode

    return _starting(incomplete, Mode)


def models(incomplete: str) -> list[str]:
    """The known names; directories, once it looks like one."""
    known = _starting(incomplete, ("glm-5.3-flash", "tiny"))
    if not incomplete.startswith(("/", ".", "~")):
        return known
    try:
        path = Path(incomplete).expanduser()
        parent, start = (path, "") if incomplete.endswith("/") else (path.parent, path.name)
        found = [item for item in parent.iterdir() if item.name.startswith(start) and item.is_dir()]
    except (OSError, ValueError, RuntimeError):  # the last one: no such user
        return known
    return sorted(f"{item}/" for item in found)


def profiles(incomplete: str) -> list[str]:
    from glm53ctl.paths import profiles_dir

    return _starting(incomplete, (item.stem for item in profiles_dir().glob("*.toml")))


def gpus(incomplete: str) -> list[str]:
    """UUIDs and PCI addresses, as the driver lists them in /proc."""
    found: list[str] = []
    for folder in _GPU_FOLDER.glob("*"):
        try:
            text = (folder / "information").read_text(encoding="utf-8")
        except OSError:
            continue
        uuids = [line for line in text.splitlines() if line.startswith("GPU UUID:")]
        found += [line.partition(":")[2].strip() for line in uuids]
        found.append(f"pci:{folder.name}")
    return _starting(incomplete, found)


def instances(incomplete: str) -> list[str]:
    """Instances that ever ran."""
    from glm53ctl import profile
    from glm53ctl.env import Environ
    from glm53ctl.errors import Glm53Error

    environ = Environ.current()
    try:
        paths = profile.paths_for(profile.load_anyway({}, environ=environ), environ)
    except Glm53Error:
        return []
    return _starting(incomplete, (file.parent.name for file in paths.state_dir.glob("*/plan.json")))


def settings(incomplete: str) -> list[str]:
    """KEY= of every setting, for --set."""
    from glm53ctl.env import rows

    return _starting(incomplete, (f"{row.key}=" for row in rows()))


def keys(incomplete: str) -> list[str]:
    """The key of every setting, for `config set`."""
    from glm53ctl.env import rows

    return _starting(incomplete, (row.key for row in rows()))


def kept_keys(incomplete: str) -> list[str]:
    """The keys in the user's file, for `config unset`."""
    from glm53ctl.env import Environ, rows
    from glm53ctl.paths import user_paths
    from glm53ctl.profile import line_of

    try:
        text = user_paths(Environ.current()).config_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    return _starting(incomplete, (row.key for row in rows() if line_of(row.key, text)))


def value_of_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """Values for the key that stands before, where they can be listed."""
    by_key = {"mode": modes, "model.name": models, "gpu.select": gpus}
    known = by_key.get(str(ctx.params.get("key")))
    return known(incomplete) if known else []


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Pages and commands, for `help`."""
    from glm53ctl.verbs.help import Topic

    commands: Any = ctx.find_root().command
    return _starting(incomplete, (*Topic, *commands.commands))


def checks(incomplete: str) -> list[str]:
    """Ids of doctor's checks."""
    from glm53ctl.doctor import SPECS

    return _starting(incomplete, (spec.id for spec in SPECS))


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(str(name) for name in names if str(name).startswith(incomplete))
