"""GPU checks: driver, card, memory and link. Cards that the model does not need only inform."""

from __future__ import annotations

from glm53ctl import drivers
from glm53ctl.checks.base import (
    Context,
    Finding,
    Fix,
    Spec,
    Status,
    no_gpu,
    passed,
    skipped,
    unknown,
)
from glm53ctl.env import GIB
from glm53ctl.hardware import GB_PER_LANE, DriverState, Gpu
from glm53ctl.limits import MIG_MIN_BYTES
from glm53ctl.render import gib

_DRIVER_FIX = {
    DriverState.NOT_LOADED: Fix(
        "load the NVIDIA kernel module, or install the driver for this kernel",
        ("sudo modprobe nvidia", "sudo dmesg | grep -i nvrm | tail"),
        needs_root=True,
    ),
    DriverState.NO_LIBRARY: Fix(
        "install the NVIDIA driver, 580.65.06 or later",
        ("sudo apt install nvidia-driver",),
        needs_root=True,
        needs_reboot=True,
    ),
    DriverState.MISMATCH: Fix(
        "the driver was upgraded while the old one runs: reboot", needs_reboot=True
    ),
    DriverState.NO_ACCESS: Fix(
        "the device files are missing or not permitted: run on the host, or check /dev/nvidia*",
        ("ls -l /dev/nvidia*",),
    ),
    DriverState.LOST: Fix(
        "the GPU fell off the bus: check power cables and riser, then reboot", needs_reboot=True
    ),
    DriverState.HUNG: Fix(
        "the driver does not answer; a reboot is normally the only cure", needs_reboot=True
    ),
    DriverState.ERROR: Fix("see what the driver logged", ("sudo dmesg | tail -50",)),
}
FULL_LINK_WIDTH = 16


def driver(context: Context) -> Finding:
    state = context.hardware.driver
    if state.state is DriverState.OK:
        cuda = f", CUDA {state.cuda[0]}.{state.cuda[1]}" if state.cuda else ""
        return Finding(
            Status.PASS,
            f"driver {state.version or 'of unknown version'}{cuda}",
            evidence=state.evidence,
        )
    if state.state is DriverState.ABSENT:
        if not context.wants_gpu:
            return skipped("no NVIDIA GPU; this model runs on the CPU")
        return Finding(
            Status.FAIL,
            state.detail or "no NVIDIA GPU",
            required="an NVIDIA card with 24 GB",
            fix=Fix("without one, the bundled model runs", ("glm53ctl up --model tiny",)),
            evidence=state.evidence,
        )
    words = {
        DriverState.NOT_LOADED: "driver not loaded",
        DriverState.NO_LIBRARY: "driver library not found",
        DriverState.MISMATCH: "driver and library versions differ",
        DriverState.NO_ACCESS: "no access to the GPU",
        DriverState.LOST: "GPU lost",
        DriverState.HUNG: "driver not answering",
        DriverState.ERROR: "driver error",
    }[state.state]
    return Finding(
        Status.FAIL if context.wants_gpu else Status.WARN,
        f"{words} ({state.detail})" if state.detail else words,
        fix=_DRIVER_FIX.get(state.state),
        evidence=state.evidence,
    )


def card(context: Context) -> Finding:
    gpu = context.gpu
    if gpu is None:
        return no_gpu(context)
    name = f"{gpu.name}  {gpu.uuid}"
    if gpu.unified_memory:
        return _rule_out(context, f"{name}: unified-memory parts are not supported by this build")
    capability = gpu.capability or drivers.capability_by_name(gpu.name)
    if capability is None:
        return unknown(f"{name}: compute capability unknown")
    number = f"sm_{capability[0]}{capability[1]}"
    if capability < drivers.MIN_CAPABILITY:
        text = f"{name}: {drivers.architecture(capability)} is not supported by this build"
        return _rule_out(context, text, required="compute capability 8.0 or later")
    by_name = "" if gpu.capability else " (by its name)"
    return passed(f"{name}  {number}{by_name}")


def driver_version(context: Context) -> Finding:
    state = context.hardware.driver
    if state.state is not DriverState.OK:
        return no_gpu(context)
    version = drivers.version_tuple(state.version)
    needed = drivers.version_text(drivers.minimum_driver())
    if not version:
        return unknown("driver version unknown")
    if version < drivers.minimum_driver():
        return Finding(
            Status.FAIL if context.wants_gpu else Status.WARN,
            f"driver {state.version}",
            required=f"{needed} or later, for CUDA {drivers.ENGINE_CUDA[0]}",
            fix=Fix(
                "install a newer driver",
                ("sudo apt install nvidia-driver-580",),
                needs_root=True,
                needs_reboot=True,
            ),
        )
    return passed(f"driver {state.version}, {needed} or later needed")


def link(context: Context) -> Finding:
    """The PCIe link. Only a measured copy can pass or fail it; idle cards read Gen1."""
    gpu, measured = context.gpu, context.hardware.measured
    if gpu is None:
        return no_gpu(context)
    if gpu.unified_memory:
        return skipped("unified memory, no link to judge")
    if measured.h2d_bytes_per_s is not None:
        return _measured_link(gpu, context)
    found = gpu.link
    if found is None or found.width is None:
        return unknown("link width unknown; measure it with `glm53ctl doctor` without --quick")
    generation = found.max_generation or found.generation
    ceiling = found.ceiling_bytes_per_s
    text = f"Gen{generation} x{found.width}" if generation else f"x{found.width}"
    limit = f", at most {ceiling / 1e9:.2f} GB/s" if ceiling else ""
    hop = f" at {found.narrowest}" if found.narrowest and found.narrowest != gpu.address else ""
    numbers = {"ceiling_bytes_per_s": ceiling}
    if found.width < min(FULL_LINK_WIDTH, found.max_width or FULL_LINK_WIDTH):
        return Finding(
            Status.WARN,
            f"{text}{hop}, narrower than the card's x{found.max_width or FULL_LINK_WIDTH}{limit}",
            fix=Fix("move the card to the slot next to the CPU, or check the riser"),
            numbers=numbers,
            evidence=found.evidence,
        )
    return Finding(
        Status.SKIP, f"{text}{limit} (not measured)", numbers=numbers, evidence=found.evidence
    )


def _measured_link(gpu: Gpu, context: Context) -> Finding:
    measured = context.hardware.measured
    rate = measured.h2d_bytes_per_s or 0.0
    generation, width = measured.h2d_generation, measured.h2d_width
    seen = f"Gen{generation} x{width}" if generation and width else "link not read during the copy"
    best = gpu.link.max_generation if gpu.link else None
    numbers = {"h2d_bytes_per_s": rate}
    idle = ""
    if gpu.link and gpu.link.generation == 1 and (generation or 1) > 1:
        idle = " (idles at Gen1)"
    text = f"{seen}, {rate / 1e9:.1f} GB/s measured{idle}"
    if generation == 1 and (best or 1) > 1:
        return Finding(
            Status.FAIL,
            f"{text}: stuck at Gen1 under load",
            fix=Fix("update driver and BIOS; force the slot's generation in the BIOS"),
            blocking=False,
            numbers=numbers,
        )
    if measured.h2d_replays:
        return Finding(
            Status.WARN,
            f"{text}; {measured.h2d_replays} packets had to be sent again",
            fix=Fix("seat the card again, or replace the riser"),
            numbers={**numbers, "replays": measured.h2d_replays},
        )
    if not generation or not width:
        return Finding(Status.PASS, text, numbers=numbers)
    share = rate / (GB_PER_LANE[generation] * 1e9 * width)
    fix = Fix("check the slot's wiring, then the riser, then a generation forced in the BIOS")
    if share < 0.55:
        return Finding(
            Status.FAIL,
            f"{text}, {share:.0%} of the link",
            fix=fix,
            blocking=False,
            numbers=numbers,
        )
    if share < 0.75:
        return Finding(Status.WARN, f"{text}, {share:.0%} of the link", fix=fix, numbers=numbers)
    return Finding(Status.PASS, text, numbers=numbers)


def selection(context: Context) -> Finding:
    error = context.outcome_error
    selector = context.profile.settings.gpu
    if error is not None and error.error_id == "GPU-005":
        return Finding(Status.FAIL, error.message, fix=Fix(error.hint or "choose one with --gpu"))
    if context.gpu is None:
        return no_gpu(context)
    if selector is None:
        count = len(context.hardware.gpus)
        return passed("the only GPU" if count == 1 else f"most free VRAM of {count} GPUs")
    return passed(f"{context.gpu.uuid} ({context.profile.origin('gpu.select')})")


def vram(context: Context) -> Finding:
    gpu = context.gpu
    if gpu is None:
        return no_gpu(context)
    if gpu.unified_memory:
        available = context.hardware.ram.available_bytes
        return Finding(
            Status.UNKNOWN,
            f"unknown (shared memory; {gib(available)} of RAM available)",
            numbers={"free_bytes": None},
        )
    if gpu.free_bytes is None or gpu.total_bytes is None:
        return unknown(
            "VRAM unknown", Fix("run on the host, or check the permissions of /dev/nvidia*")
        )
    holders = ", ".join(
        f"{item.name or f'{item.pid} (other namespace)'} {gib(item.used_bytes)}"
        if item.used_bytes
        else f"{item.name or f'{item.pid} (other namespace)'}"
        for item in gpu.processes
    )
    text = f"{gpu.free_bytes / GIB:.1f} of {gpu.total_bytes / GIB:.1f} GiB free"
    numbers = {"free_bytes": gpu.free_bytes, "total_bytes": gpu.total_bytes}
    if holders:
        text += f", held by {holders}"
    if gpu.display_active and gpu.graphics_bytes and _other_display(context):
        return Finding(
            Status.WARN,
            text,
            fix=Fix(f"plug the monitor into the board and win {gib(gpu.graphics_bytes)}"),
            numbers=numbers,
        )
    compute = [item for item in gpu.processes if "compute" in item.kind]
    if compute and gpu.free_bytes < gpu.total_bytes * 0.8:
        return Finding(
            Status.WARN,
            text,
            fix=Fix("stop the other programs, or plan around them"),
            numbers=numbers,
        )
    return Finding(Status.PASS, text, numbers=numbers, evidence=gpu.evidence)


def slices(context: Context) -> Finding:
    gpu = context.gpu
    if gpu is None:
        return no_gpu(context)
    if gpu.mig_enabled:
        return _rule_out(context, "MIG is on; choose a slice with --gpu MIG-...")
    if gpu.parent_uuid and (gpu.total_bytes or 0) < MIG_MIN_BYTES:
        text = f"the MIG slice has {(gpu.total_bytes or 0) / GIB:.1f} GiB"
        return _rule_out(context, text, required="20 GiB")
    return passed("a slice" if gpu.parent_uuid else "MIG is off")


def _other_display(context: Context) -> bool:
    """Whether another maker's display device is in this machine, most often the CPU's own."""
    system, base = context.system, "/sys/bus/pci/devices"
    return any(
        (system.read(f"{base}/{name}/class") or "").startswith("0x03")
        and (system.read(f"{base}/{name}/vendor") or "").strip() in {"0x8086", "0x1002"}
        for name in system.names(base)
    )


def _rule_out(context: Context, text: str, required: str | None = None) -> Finding:
    return Finding(Status.FAIL if context.wants_gpu else Status.WARN, text, required)


SPECS = (
    Spec("GPU-001", "driver", "GPU", driver),
    Spec("GPU-002", "card", "GPU", card),
    Spec("GPU-003", "driver version", "GPU", driver_version),
    Spec("GPU-004", "PCIe", "GPU", link),
    Spec("GPU-005", "selection", "GPU", selection),
    Spec("GPU-006", "VRAM", "GPU", vram),
    Spec("GPU-011", "MIG", "GPU", slices),
)
