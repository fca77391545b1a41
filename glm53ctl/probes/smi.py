"""nvidia-smi, used only where NVML cannot be loaded: one query per group of fields, never the table."""

from __future__ import annotations

from glm53ctl.hardware import Driver, DriverState, Evidence, Gpu, Link
from glm53ctl.probes.system import CommandResult, System

CANDIDATES = (
    "/usr/bin/nvidia-smi",
    "/usr/lib/wsl/lib/nvidia-smi",
    "/run/current-system/sw/bin/nvidia-smi",
    "/opt/bin/nvidia-smi",
)
IDENTITY = ("index", "uuid", "name", "driver_version")
DETAILS = ("pci.bus_id", "compute_cap", "memory.total", "memory.free", "pcie.link.gen.current",
           "pcie.link.width.current")  # fmt: skip
MIB = 1 << 20
# Answers that are not values. "Insufficient Permissions" and the rest stay as the reason.
REFUSALS = ("[", "N/A", "ERR!", "Requested functionality has been deprecated")

Answer = tuple[Driver, tuple[Gpu, ...], tuple[tuple[str, str], ...]]


def find(system: System) -> str | None:
    """nvidia-smi's absolute path. PATH is not asked: services and root often lack the folder."""
    return next((path for path in CANDIDATES if system.exists(path)), None)


def probe(system: System) -> Answer | None:
    """(driver, GPUs, unknown facts), or None when there is no nvidia-smi."""
    tool = find(system)
    if tool is None:
        return None
    identity = query(system, tool, IDENTITY)
    evidence = (Evidence(tool, (identity.out or identity.err).strip()[:200]),)
    if not identity.ok:
        state, detail = _problem(identity)
        return Driver(state, detail=detail, evidence=evidence), (), ()
    gpus: list[Gpu] = []
    unknown: list[tuple[str, str]] = []
    for line in identity.out.splitlines():
        values = [part.strip() for part in line.split(",")]
        if len(values) == len(IDENTITY) and values[0].isdigit():
            gpus.append(_gpu(system, tool, values, unknown))
    version = identity.out.splitlines()[0].split(",")[-1].strip() if gpus else None
    state = DriverState.OK if gpus else DriverState.ABSENT
    return Driver(state, version=version, evidence=evidence), tuple(gpus), tuple(unknown)


def query(
    system: System, tool: str, fields: tuple[str, ...], gpu: str | None = None
) -> CommandResult:
    chosen = [f"--id={gpu}"] if gpu else []
    argv = [tool, *chosen, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    return system.run(argv, deadline_s=2.0)


def _gpu(system: System, tool: str, identity: list[str], unknown: list[tuple[str, str]]) -> Gpu:
    """One card; each detail is a query of its own, so that an unknown field costs only itself."""
    index, uuid, name, _ = identity
    found: dict[str, str] = {}
    for field in DETAILS:
        answer = query(system, tool, (field,), uuid)
        text = answer.out.strip()
        if answer.ok and text and not text.startswith(REFUSALS):
            found[field] = text
        else:
            unknown.append((f"gpu {index} {field}", text or answer.err.strip() or "no answer"))
    total, free = found.get("memory.total"), found.get("memory.free")
    generation, width = found.get("pcie.link.gen.current"), found.get("pcie.link.width.current")
    refused = dict(unknown).get(f"gpu {index} memory.total", "")
    return Gpu(
        index=int(index),
        uuid=uuid,
        name=name,
        address=_address(found.get("pci.bus_id")),
        capability=_capability(found.get("compute_cap")),
        total_bytes=int(total) * MIB if total and total.isdigit() else None,
        free_bytes=int(free) * MIB if free and free.isdigit() else None,
        unified_memory=refused in {"[N/A]", "[Not Supported]"},
        link=Link(_int(generation), _int(width)) if generation or width else None,
    )


def _problem(result: CommandResult) -> tuple[DriverState, str]:
    text = (result.out + result.err).strip().splitlines()
    detail = text[0] if text else f"nvidia-smi ended with code {result.code}"
    if result.problem == "timeout":
        return DriverState.HUNG, "nvidia-smi does not answer"
    if "couldn't communicate" in detail:
        return DriverState.NOT_LOADED, detail
    by_code = {9: DriverState.NOT_LOADED, 15: DriverState.LOST, 18: DriverState.MISMATCH}
    return by_code.get(result.code, DriverState.ERROR), detail


def _capability(text: str | None) -> tuple[int, int] | None:
    major, _, minor = (text or "").partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _address(bus_id: str | None) -> str | None:
    if not bus_id:
        return None
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _int(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
