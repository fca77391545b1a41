"""Room on the disk: what is missing must fit before the first byte is fetched, and while fetching."""

from __future__ import annotations

from pathlib import Path

from glm53ctl.errors import ArtifactError
from glm53ctl.probes.system import DiskSpace
from glm53ctl.render import gigabytes

SPARE_BYTES = 2 << 30


def check_room(
    folder: Path, disk: DiskSpace, *, missing_bytes: int, total_bytes: int, missing_files: int
) -> None:
    """Raises ArtifactError when what is missing (not the total) does not fit."""
    hint = "keep checkpoints on a larger disk: GLM53_MODELS_DIR=/path glm53ctl models pull"
    if disk.read_only:
        raise ArtifactError(f"{folder} is on a read-only disk", hint=hint, error_id="ART-003")
    needed = missing_bytes + SPARE_BYTES
    if missing_bytes and disk.free_bytes < needed:
        raise ArtifactError(
            f"{folder} has {gigabytes(disk.free_bytes)} free, {gigabytes(missing_bytes)} "
            f"of {gigabytes(total_bytes)} are still to fetch (with {gigabytes(SPARE_BYTES)} to spare: "
            f"{gigabytes(needed)})",
            hint=hint,
            error_id="ART-003",
        )
    if 0 < disk.free_inodes < missing_files + 10:  # 0: this file system does not count them
        raise ArtifactError(
            f"{folder} has room, but only {disk.free_inodes} inodes for {missing_files} files",
            hint=hint,
            error_id="ART-003",
        )
