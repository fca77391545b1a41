"""Docker checks. A native start needs none of this, so nothing here ever blocks."""

from __future__ import annotations

from dataclasses import replace

from glm53ctl.checks.base import Context, Finding, Fix, Spec, Status, passed, skipped
from glm53ctl.hardware import DriverState
from glm53ctl.probes import docker

_TOOLKIT_FIX = Fix(
    "install the NVIDIA container toolkit and tell Docker about it",
    (
        "sudo apt install nvidia-container-toolkit",
        "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
    ),
    needs_root=True,
)
_CDI_COMMAND = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"


def engine(context: Context) -> Finding:
    remote = context.system.environ.get("DOCKER_HOST")
    found = docker.probe(context.system)
    if found.problem == "missing":
        return skipped("not installed; a native start needs none")
    if found.problem == "permission":
        return Finding(
            Status.WARN, "no permission to talk to Docker",
            fix=Fix("join the docker group, then log in again", ("sudo usermod -aG docker $USER",), True),
        )  # fmt: skip
    if found.problem is not None:
        return skipped(f"installed, {found.problem}; a native start needs none")
    if remote and not remote.startswith("unix://"):
        return Finding(Status.WARN, f"DOCKER_HOST is {remote}: our GPU facts are not about it")
    if found.desktop:
        return Finding(
            Status.WARN,
            "Docker Desktop runs in a virtual machine without the GPU",
            fix=Fix("use Docker Engine", ("docker context use default",)),
        )
    extra = " rootless" if found.rootless else ""
    return passed(f"{found.version}{extra}, cgroups by {found.cgroup_driver}")


def toolkit(context: Context) -> Finding:
    """The toolkit and the runtime; a missing specification is the next check's."""
    found = docker.probe(context.system)
    if found.problem is not None or context.hardware.driver.state is not DriverState.OK:
        return skipped("no Docker or no GPU")
    version = docker.toolkit_version(context.system)
    if version is None:
        return Finding(
            Status.WARN, "the NVIDIA container toolkit is not installed", fix=_TOOLKIT_FIX
        )
    if not found.nvidia_runtime and not docker.cdi_devices(context.system):
        return Finding(
            Status.WARN,
            f"toolkit {version}, but Docker does not know its runtime",
            fix=replace(_TOOLKIT_FIX, commands=_TOOLKIT_FIX.commands[1:]),
        )
    if found.cgroup_driver == "systemd" and not _device_links(context):
        return Finding(
            Status.WARN,
            f"toolkit {version}; `systemctl daemon-reload` takes the GPU from running containers",
            fix=Fix(
                "make the device links, or use CDI",
                ("sudo nvidia-ctk system create-dev-char-symlinks --create-all",),
                needs_root=True,
            ),
        )
    return passed(f"toolkit {version}")


def cdi(context: Context) -> Finding:
    if context.hardware.driver.state is not DriverState.OK:
        return skipped("no GPU")
    devices = docker.cdi_devices(context.system)
    if not devices:
        if docker.toolkit_version(context.system) is None:
            return skipped("no toolkit, no specification")
        return Finding(
            Status.WARN,
            "no CDI specification of kind nvidia.com/gpu",
            fix=Fix("generate it", (_CDI_COMMAND,), needs_root=True),
        )
    made_for = docker.cdi_driver(context.system)
    running = context.hardware.driver.version
    if made_for and running and made_for != running:
        return Finding(
            Status.WARN,
            f"the CDI specification is for driver {made_for}, {running} runs",
            fix=Fix("generate it again", (_CDI_COMMAND,), needs_root=True),
        )
    return passed(f"CDI: {', '.join(devices)}")


def _device_links(context: Context) -> bool:
    return any(name.startswith("195:") for name in context.system.names("/dev/char"))


SPECS = (
    Spec("DOCK-001", "Docker", "Docker", engine),
    Spec("DOCK-002", "toolkit", "Docker", toolkit),
    Spec("DOCK-003", "CDI", "Docker", cdi),
)
