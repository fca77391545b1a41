"""Options that several verbs share, so that they read and behave the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

from glm53ctl.verbs import complete

ModeOption = Annotated[
    str | None,
    typer.Option(
        "--mode", autocompletion=complete.modes, metavar="MODE", help="auto, fast, exact or cpu."
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        autocompletion=complete.models,
        metavar="NAME|DIR",
        help="glm-5.3-flash, tiny, or a checkpoint's directory.",
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        autocompletion=complete.profiles,
        metavar="NAME",
        help="Named settings, or a TOML file.",
    ),
]
HostOption = Annotated[
    str | None, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")
]
PortOption = Annotated[
    int | None, typer.Option("--port", min=1, max=65535, metavar="N", help="Port to listen on.")
]
GpuOption = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        autocompletion=complete.gpus,
        metavar="GPU",
        help="Index, UUID (or its start), MIG UUID or pci:01:00.0.",
    ),
]
ContextOption = Annotated[
    int | None,
    typer.Option("--context-tokens", min=256, metavar="N", help="Longest prompt plus answer."),
]
ServedNameOption = Annotated[
    str | None, typer.Option("--served-name", metavar="NAME", help="Model name shown to clients.")
]
ApiKeyFileOption = Annotated[
    str | None, typer.Option("--api-key-file", metavar="FILE", help="File that holds the API key.")
]
EngineOption = Annotated[
    str | None,
    typer.Option("--engine", metavar="NAME", help="stock: unmodified exllamav3, for comparisons."),
]
LoadFormatOption = Annotated[
    str | None,
    typer.Option(
        "--load-format", metavar="FORMAT", help="checkpoint, or dummy[:layers=N,experts=N]."
    ),
]
CacheTokensOption = Annotated[
    int | None,
    typer.Option(
        "--cache-tokens", "-cs", min=256, metavar="N", help="Attention cache of all streams."
    ),
]
MaxBatchOption = Annotated[
    int | None,
    typer.Option("--max-batch", "-ambs", min=1, metavar="N", help="Streams decoded together."),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing, agree to downloads.")]
OfflineOption = Annotated[bool, typer.Option("--offline", help="Never download.")]
InstanceOption = Annotated[
    str | None,
    typer.Option(
        "--instance",
        autocompletion=complete.instances,
        metavar="NAME",
        help="One of several servers.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        autocompletion=complete.settings,
        metavar="KEY=VALUE",
        help="Any setting, as in `glm53ctl config show`.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
