"""`glm53ctl config show`: every setting, its value, and where the value came from."""

from __future__ import annotations

from typing import Annotated

import typer

from glm53ctl.verbs import complete, options

app = typer.Typer(help="Show and change settings; say where they come from.", no_args_is_help=True)


@app.command()
def show(
    *,
    profile: options.ProfileOption = None,
    origin: Annotated[bool, typer.Option("--origin", help="Where each value came from.")] = False,
    json_: options.JsonOption = False,
) -> None:
    """Print every setting of this user.

    Examples:

      glm53ctl config show --origin

      GLM53_PORT=9000 glm53ctl config show --origin
    """
    from glm53ctl import profile as profiles
    from glm53ctl import render
    from glm53ctl.env import Environ, rows

    found = profiles.load({}, environ=Environ.current(), profile=profile)
    for warning in found.warnings:
        render.warn(warning)
    values = {row.key: getattr(found.settings, row.field_name) for row in rows()}
    if json_:
        body = {
            key: {
                "value": value,
                "layer": found.origins[key].layer,
                "where": found.origins[key].where,
            }
            for key, value in values.items()
        }
        render.emit_json({"schema": "glm53ctl.config/1", "profile": found.name, "settings": body})
        return
    lines = [
        (row.key, profiles.text_of(values[row.key], row), found.origin(row.key) if origin else "")
        for row in rows()
    ]
    render.emit("\n".join(line.rstrip() for line in render.columns(lines, indent="")))


@app.command(name="set")
def set_(
    key: Annotated[str, typer.Argument(metavar="KEY", autocompletion=complete.keys)],
    value: Annotated[str, typer.Argument(metavar="VALUE", autocompletion=complete.value_of_key)],
) -> None:
    """Write one setting into the user's file; comments and other settings stay.

    Examples:

      glm53ctl config set model.models_dir /mnt/nvme/models

      glm53ctl config set vram.reserve_gib 2
    """
    _edit(key, value)


@app.command()
def unset(
    key: Annotated[str, typer.Argument(metavar="KEY", autocompletion=complete.kept_keys)],
) -> None:
    """Remove one setting from the user's file."""
    _edit(key, None)


def _edit(key: str, value: str | None) -> None:
    from glm53ctl import config_edit, render
    from glm53ctl.env import Environ
    from glm53ctl.paths import user_paths

    file = user_paths(Environ.current()).config_file
    changed = config_edit.set_value(file, key, value)
    if value is None:
        render.say(f"{key} {'removed from' if changed else 'is not set in'} {file}")
    else:
        render.say(f"{key} set in {file}")


@app.command()
def path() -> None:
    """Print the path of the settings file, whether it exists or not."""
    from glm53ctl import render
    from glm53ctl.env import Environ
    from glm53ctl.paths import user_paths

    render.emit(str(user_paths(Environ.current()).config_file))
