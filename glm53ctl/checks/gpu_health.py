"""GPU checks of condition: power, persistence, kernel log, suspend, and what only informs."""

from __future__ import annotations

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
from glm53ctl.hardware import DriverState
from glm53ctl.probes import kernel_log
from glm53ctl.render import gib

THROTTLE_THERMAL = 0x20 | 0x40
THROTTLE_HARDWARE = 0x8 | 0x80


def power(context: Context) -> Finding:
    gpu = context.gpu
    if gpu is None:
        return no_gpu(context)
    # At rest they say little; during the measured copy the card worked.
    reasons = (gpu.throttle_reasons or 0) | (context.hardware.measured.h2d_throttle or 0)
    if reasons & THROTTLE_HARDWARE:
        return Finding(
            Status.FAIL, "hardware slowdown", fix=Fix("check the power supply and its cables"),
            blocking=False,
        )  # fmt: skip
    if reasons & THROTTLE_THERMAL:
        return Finding(Status.WARN, "slowed down by heat", fix=Fix("check the card's cooling"))
    if gpu.power_limit_w is None:
        return unknown("power limit not reported")
    if gpu.power_default_w and gpu.power_limit_w < gpu.power_default_w:
        return passed(
            f"capped at {gpu.power_limit_w:.0f} of {gpu.power_default_w:.0f} W, your setting"
        )
    return passed(f"{gpu.power_limit_w:.0f} W")


def persistence(context: Context) -> Finding:
    gpu = context.gpu
    if gpu is None or gpu.persistence is None:
        return no_gpu(context) if gpu is None else unknown("persistence mode not reported")
    if gpu.persistence or gpu.display_active:
        return passed("on" if gpu.persistence else "off, but a display keeps the card awake")
    return Finding(
        Status.WARN,
        "off: every start of CUDA waits 1 to 3 s",
        fix=Fix(
            "run the persistence daemon", ("sudo systemctl enable --now nvidia-persistenced",),
            needs_root=True,
        ),
    )  # fmt: skip


def binding(context: Context) -> Finding:
    if context.hardware.driver.stale_binding:
        return Finding(
            Status.WARN,
            "old pynvml package shadows nvidia-ml-py",
            fix=Fix(
                "remove it", ("pip uninstall pynvml", "pip install --force-reinstall nvidia-ml-py")
            ),
        )
    return passed("nvidia-ml-py")


def resizable_bar(context: Context) -> Finding:
    """Information only: copies do not depend on it."""
    gpu = context.gpu
    if gpu is None:
        return no_gpu(context)
    if gpu.bar1_bytes is None:
        return unknown("BAR1 not reported")
    state = "on" if gpu.total_bytes and gpu.bar1_bytes >= gpu.total_bytes else "off"
    return passed(f"{state} ({gib(gpu.bar1_bytes)}), does not matter for copies")


def log(context: Context) -> Finding:
    """The kernel's own words; a log that cannot be read is unknown, never a pass."""
    if context.hardware.driver.state is DriverState.ABSENT:
        return skipped("no usable GPU")
    found = kernel_log.probe(context.system)
    if found is None:
        return unknown(
            "the kernel log cannot be read",
            Fix(
                "join the group that may read it", ("sudo usermod -aG systemd-journal $USER",), True
            ),
        )
    lost = [event for event in found if event.kind == "lost"]
    if lost:
        return Finding(
            Status.FAIL,
            f"GPU {lost[-1].address or '(address not logged)'} fell off the bus in this boot",
            fix=Fix("check power cables and riser, then reboot", needs_reboot=True),
            blocking=context.wants_gpu,
        )
    xids = sorted({event.xid for event in found if event.xid} - kernel_log.HARMLESS_XIDS)
    if xids:
        return Finding(
            Status.WARN,
            f"NVIDIA errors in this boot: Xid {', '.join(map(str, xids))}",
            fix=Fix("look them up in NVIDIA's Xid table", ("sudo journalctl -k -b -g NVRM",)),
        )
    return passed("no GPU errors in this boot")


def suspend(context: Context) -> Finding:
    """A suspend empties VRAM unless the driver saves it; the server would come back broken."""
    gpu = context.gpu
    if gpu is None:
        return no_gpu(context)
    text = context.system.read("/proc/driver/nvidia/params") or ""
    if "PreserveVideoMemoryAllocations: 1" in text:
        return passed("VRAM survives a suspend")
    if not text or not gpu.display_active:
        return skipped(
            "no desktop, no suspend expected" if text else "driver parameters not readable"
        )
    return Finding(
        Status.WARN,
        "VRAM does not survive a suspend of this desktop",
        fix=Fix(
            "let the driver save it",
            (
                "echo options nvidia NVreg_PreserveVideoMemoryAllocations=1 | "
                "sudo tee /etc/modprobe.d/nvidia-suspend.conf",
                "sudo systemctl enable nvidia-suspend nvidia-resume",
            ),
            needs_root=True,
            needs_reboot=True,
        ),
    )


SPECS = (
    Spec("GPU-007", "power", "GPU", power),
    Spec("GPU-008", "persistence", "GPU", persistence),
    Spec("GPU-009", "NVML package", "GPU", binding),
    Spec("GPU-010", "resizable BAR", "GPU", resizable_bar),
    Spec("GPU-012", "kernel log", "GPU", log),
    Spec("GPU-013", "suspend", "GPU", suspend),
)
