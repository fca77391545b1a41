"""Where a server runs: natively, or in our container. The decision is pure; looking is beside it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from glm53ctl.errors import Blocked
from glm53ctl.plan import EngineName, Plan

if TYPE_CHECKING:
    from glm53ctl.probes.system import System


IMAGE = "glm53ctl:local"  # as docker/compose.yaml and the documents build it
BUILD = f"docker build -f docker/Dockerfile -t {IMAGE} ."


class Runtime(StrEnum):
    AUTO = "auto"
    NATIVE = "native"
    DOCKER = "docker"


_MODULES = {
    EngineName.EXL3: ("torch", "exllamav3", "fastapi"),
    EngineName.STOCK: ("torch", "exllamav3", "fastapi"),
    EngineName.CPU: ("torch", "transformers", "fastapi"),
    EngineName.SCRIPTED: ("fastapi",),
}
_DAEMON = {
    "missing": "docker is not installed",
    "permission": "this user may not use docker",
    "no daemon": "the docker daemon does not run",
    "no answer": "the docker daemon does not answer",
}


@dataclass(frozen=True, slots=True)
class Place:
    """The chosen runtime, never AUTO, and why."""

    runtime: Runtime
    why: str


def choose(asked: Runtime, *, native: str | None, container: str | None) -> Place:
    """Where to run. `native` and `container` say what speaks against each; None: nothing does.

    Raises Blocked when nothing that was asked for is possible.
    """
    if asked is not Runtime.DOCKER and native is None:
        return Place(Runtime.NATIVE, "asked for" if asked is Runtime.NATIVE else "possible here")
    if asked is not Runtime.NATIVE and container is None:
        return Place(Runtime.DOCKER, "asked for" if asked is Runtime.DOCKER else f"{native}")
    problems = {
        Runtime.NATIVE: f"natively: {native}",
        Runtime.DOCKER: f"in docker: {container}",
        Runtime.AUTO: f"natively: {native}; in docker: {container}",
    }
    raise Blocked(
        f"the server cannot run {problems[asked]}",
        hint="install an engine: scripts/install.sh --extra cuda (or cpu)\n"
        f"or build the image: {BUILD}",
        error_id="RUN-004",
    )


def native_problem(plan: Plan) -> str | None:
    """A module that the plan's engine needs and this installation lacks. Imports nothing."""
    for name in _MODULES[plan.engine]:
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    return None


def container_problem(system: System, image: str, *, gpu: bool) -> str | None:
    """What keeps `docker run` of our image from working here."""
    from glm53ctl.probes import docker  # not needed for `--help`

    found = docker.probe(system)
    if found.problem is not None:
        return _DAEMON[found.problem]
    if gpu and not found.nvidia_runtime and not docker.cdi_devices(system):
        return (
            "docker has neither the NVIDIA runtime nor a CDI device: install the container toolkit"
        )
    if not system.run(["docker", "image", "inspect", image], deadline_s=5.0).ok:
        return f"the image {image} is not here"
    return None
