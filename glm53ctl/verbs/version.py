"""`glm53ctl version`: our version and those of what a server would load."""

from __future__ import annotations

from glm53ctl.verbs.options import JsonOption

PACKAGES = ("torch", "transformers", "exllamav3", "fastapi", "huggingface-hub")


def version(*, json_: JsonOption = False) -> None:
    """Print the versions of glm53ctl and of its engines. Nothing is ever sent anywhere."""
    import platform
    from importlib import metadata

    from glm53ctl import __version__, render

    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    if json_:
        body = {"glm53ctl": __version__, "python": platform.python_version(), "packages": found}
        render.emit_json({"schema": "glm53ctl.version/1", **body})
        return
    render.emit(f"glm53ctl {__version__} (Python {platform.python_version()}, no telemetry)")
    rows = [(name, text or "not installed") for name, text in found.items()]
    render.emit("\n".join(render.columns(rows)))
