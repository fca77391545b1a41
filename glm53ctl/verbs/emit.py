"""`glm53ctl emit`: configuration for service managers, containers and gateways, on stdout."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glm53ctl.verbs import options

if TYPE_CHECKING:
    from glm53ctl.emit.deployment import Deployment
    from glm53ctl.emit.gateway import Backend


class Format(StrEnum):
    SYSTEMD = "systemd"
    COMPOSE = "compose"
    QUADLET = "quadlet"
    DOCKER_RUN = "docker-run"
    LITELLM = "litellm"
    SGLANG = "sglang"
    VLLM = "vllm"


def emit(
    format: Annotated[Format, typer.Argument(help="What to write.")],
    *,
    mode: options.ModeOption = None,
    model: options.ModelOption = None,
    profile: options.ProfileOption = None,
    host: options.HostOption = None,
    port: options.PortOption = None,
    gpu: options.GpuOption = None,
    engine: options.EngineOption = None,
    instance: options.InstanceOption = None,
    sets: options.SetOption = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="REF", help="Container image, best by digest.")
    ] = None,
    system: Annotated[
        bool, typer.Option("--system", help="systemd: a unit of the machine, not of this user.")
    ] = False,
    install: Annotated[
        bool, typer.Option("--install", help="systemd: put the user's unit in its place.")
    ] = False,
    urls: Annotated[
        list[str] | None,
        typer.Option("--url", metavar="URL", help="litellm: a server elsewhere; repeat it."),
    ] = None,
    gpus: Annotated[
        int, typer.Option("--gpus", min=1, metavar="N", help="sglang, vllm: GPUs of that host.")
    ] = 8,
) -> None:
    """Write a unit, a container or a gateway configuration for what `up` would run here.

    Examples:

      glm53ctl emit systemd --install

      glm53ctl emit compose --mode fast > compose.yaml

      glm53ctl emit litellm --url http://10.0.0.2:8080 --url http://10.0.0.3:8080

    """
    from glm53ctl import render

    given = {
        "mode": mode, "model": model, "profile": profile, "host": host, "port": port, "gpu": gpu,
        "engine": engine, "instance": instance, "sets": sets,
    }  # fmt: skip
    if format is Format.LITELLM:
        render.emit(_litellm(urls or []).rstrip("\n"))
    elif format in {Format.SGLANG, Format.VLLM}:
        render.emit(_hand_over(format, given, gpus).rstrip("\n"))
    else:
        made = _deployment(given, image)
        text = _spelled(format, made, user=not system)
        if install:
            _install(format, made, text, user=not system)
        else:
            render.emit(text.rstrip("\n"))


def _deployment(given: dict[str, Any], image: str | None) -> Deployment:
    from glm53ctl import choose, render
    from glm53ctl.emit.deployment import deployment
    from glm53ctl.probes.system import this_system

    situation = choose.survey(choose.PlanOptions(**given))
    for warning in situation.profile.warnings:
        render.warn(warning)
    plan = choose.decide(situation).chosen()
    system = this_system(situation.environ)
    return deployment(situation, plan, system, command=_command(), image=image)


def _spelled(format: Format, made: Deployment, *, user: bool) -> str:
    from glm53ctl import render
    from glm53ctl.emit import containers, systemd
    from glm53ctl.runtime import BUILD, IMAGE

    if format is Format.SYSTEMD:
        return systemd.unit(made, user=user)
    if made.image == IMAGE:
        render.say(f"{IMAGE} is built in a checkout: {BUILD}")
    elif "@sha256:" not in made.image:
        render.say(f"pin the image by digest: docker image inspect -f '{{{{.Id}}}}' {made.image}")
    spell = {
        Format.COMPOSE: containers.compose,
        Format.QUADLET: containers.quadlet,
        Format.DOCKER_RUN: containers.docker_run,
    }[format]
    return spell(made)


def _install(format: Format, made: Deployment, text: str, *, user: bool) -> None:
    """Write the user's unit; what needs root or changes the running system is only said."""
    from glm53ctl import render
    from glm53ctl.env import Environ
    from glm53ctl.errors import UsageError

    if format is not Format.SYSTEMD or not user:
        raise UsageError(
            "--install is for the unit of this user", hint=f"glm53ctl emit {format} > FILE"
        )
    environ = Environ.current()
    base = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME')}/.config"
    file = Path(base) / "systemd" / "user" / f"{made.name}.service"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as err:
        raise UsageError(f"cannot write {file}: {err.strerror}") from err
    render.emit(f"wrote  {file}")
    render.emit(
        f"next   systemctl --user daemon-reload && systemctl --user enable --now {made.name}"
    )
    render.emit("boot   loginctl enable-linger   (start without a login)")


def _command() -> str:
    """The glm53ctl of this installation, by its full path: by the link, which follows upgrades."""
    from glm53ctl import installed
    from glm53ctl.env import Environ
    from glm53ctl.errors import UsageError

    with suppress(UsageError):
        return str(installed.find(Environ.current(), Path(sys.prefix)).link)
    beside = Path(sys.executable).with_name("glm53ctl")
    return str(beside) if beside.exists() else shutil.which("glm53ctl") or "glm53ctl"


def _litellm(urls: list[str]) -> str:
    from glm53ctl.emit import gateway
    from glm53ctl.errors import NotRunning

    backends = [_elsewhere(number, url) for number, url in enumerate(urls, 1)] or _instances()
    if not backends:
        raise NotRunning(
            "there is no instance to put behind a gateway",
            hint="start some (glm53ctl up --instance NAME --port N), or name them with --url",
        )
    return gateway.litellm(backends)


def _elsewhere(number: int, url: str) -> Backend:
    from glm53ctl.emit.gateway import Backend
    from glm53ctl.errors import UsageError
    from glm53ctl.fetch import FLASH_RELEASE

    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--url {url}: give http://HOST:PORT")
    base = url.rstrip("/").removesuffix("/v1")
    return Backend(f"glm53-{number}", base, FLASH_RELEASE.name, streams=4, has_key=True)


def _instances() -> list[Backend]:
    """Every instance of this user that has a plan, running or not."""
    from glm53ctl import profile
    from glm53ctl.emit.gateway import Backend
    from glm53ctl.env import Environ
    from glm53ctl.plan import read_plan

    environ = Environ.current()
    paths = profile.paths_for(profile.load({}, environ=environ), environ)
    found: list[Backend] = []
    for file in sorted(paths.state_dir.glob("*/plan.json")):
        plan = read_plan(file)
        has_key = plan.listen.api_key_file is not None
        name, served = file.parent.name, plan.model.served_name
        found.append(Backend(name, plan.url, served, plan.limits.max_batch, has_key))
    return found


def _hand_over(format: Format, given: dict[str, Any], gpus: int) -> str:
    from glm53ctl import profile
    from glm53ctl.emit import gateway
    from glm53ctl.env import Environ
    from glm53ctl.fetch import FLASH_RELEASE

    environ = Environ.current()
    flags = {"port": given["port"]}
    settings = profile.load(flags, environ=environ, profile=given["profile"]).settings
    cache = environ.get("HF_HOME") or f"{environ.get('HOME')}/.cache/huggingface"
    return gateway.hand_over(
        format,
        gpus=gpus,
        port=settings.port,
        served_name=settings.served_name or FLASH_RELEASE.name,
        cache_dir=cache,
    )
