"""Disk checks: room and speed for the checkpoint, and the checkpoint itself."""

from __future__ import annotations

from pathlib import Path

from glm53ctl.checks.base import Context, Finding, Fix, Spec, Status, passed, skipped, unknown
from glm53ctl.fetch import FLASH_RELEASE, missing_bytes
from glm53ctl.fetch.space import SPARE_BYTES
from glm53ctl.plan import Mode
from glm53ctl.probes import disk
from glm53ctl.render import gigabytes

FEW_INODES = 1000


def checkpoint(context: Context) -> Finding:
    if context.model is None:
        error = context.model_error
        return Finding(
            Status.FAIL,
            error.message if error else "the checkpoint cannot be read",
            fix=Fix(error.hint) if error and error.hint else None,
        )
    if context.model.present:
        return passed(f"{context.model.facts.name} in {context.model.path}")
    missing = missing_bytes(FLASH_RELEASE, Path(context.model.path))
    if context.outcome is not None and context.outcome.plan is None:
        return skipped(f"{context.model.facts.name} is not here, and this machine cannot serve it")
    return Finding(
        Status.WARN,
        f"{context.model.facts.name} is not in {context.model.path} yet",
        fix=Fix(
            f"download it ({gigabytes(missing)}), or name the folder that has it",
            ("glm53ctl models pull", "glm53ctl up --model /path/to/checkpoint"),
        ),
    )


def space(context: Context) -> Finding:
    found = disk.probe(context.system, context.paths.models_dir)
    if found.space is None:
        return unknown(f"the disk of {found.folder} cannot be read")
    numbers = {"free_bytes": found.space.free_bytes, "free_inodes": found.space.free_inodes}
    text = f"{found.folder} has {gigabytes(found.space.free_bytes)} free"
    if context.model is None or context.model.present:
        return Finding(Status.PASS, f"{text}, nothing to fetch", numbers=numbers)
    missing = missing_bytes(FLASH_RELEASE, Path(context.model.path))
    needed = missing + SPARE_BYTES
    fix = Fix(
        "keep checkpoints on a larger disk",
        ("GLM53_MODELS_DIR=/path/on/a/large/disk glm53ctl doctor",),
    )
    blocking = context.wants_gpu and _would_run(context)
    if found.space.read_only:
        return Finding(Status.FAIL, f"{found.folder} is read-only", fix=fix, blocking=blocking)
    if found.space.free_bytes < needed:
        return Finding(
            Status.FAIL, f"{text}, {gigabytes(missing)} to fetch", fix=fix, numbers=numbers,
            required=f"{gigabytes(needed)}", blocking=blocking,
        )  # fmt: skip
    if 0 < found.space.free_inodes < FEW_INODES:
        return Finding(Status.FAIL, f"{text}, but no inodes", fix=fix, blocking=blocking)
    return Finding(Status.PASS, f"{text}, {gigabytes(missing)} to fetch", numbers=numbers)


def kind(context: Context) -> Finding:
    if not context.wants_gpu:
        return skipped("a small checkpoint loads from anywhere")
    found = disk.probe(context.system, context.paths.models_dir)
    if found.filesystem is None:
        return unknown(f"the file system of {found.folder} is not known")
    text = f"{found.filesystem} on {found.device}"
    if found.over_network:
        return Finding(
            Status.WARN,
            f"{text}: a network file system, starts take 5 to 20 times as long",
            fix=Fix("keep checkpoints on a local SSD"),
        )
    if found.rotational:
        return Finding(
            Status.WARN,
            f"{text}: a spinning disk, a start reads 125 GB from it",
            fix=Fix("keep checkpoints on an SSD"),
        )
    return passed(text)


def throughput(context: Context) -> Finding:
    rate = context.hardware.measured.disk_read_bytes_per_s
    if rate is None:
        return skipped("not measured")
    return Finding(
        Status.PASS,
        f"{gigabytes(rate)}/s read, measured",
        numbers={"disk_read_bytes_per_s": rate},
    )


def _would_run(context: Context) -> bool:
    """Whether anything but the missing checkpoint keeps this machine from serving it."""
    plan = context.outcome.plan if context.outcome else None
    return plan is not None and plan.mode is not Mode.CPU


SPECS = (
    Spec("DISK-001", "checkpoint", "Disk", checkpoint),
    Spec("DISK-002", "space", "Disk", space),
    Spec("DISK-003", "disk", "Disk", kind),
    Spec("DISK-004", "read speed", "Disk", throughput),
)
