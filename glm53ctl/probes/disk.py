"""Where a folder really lies: its file system, the device below it, and the room that is left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from glm53ctl.probes.system import DiskSpace, System

VIRTUAL = ("vd", "xvd")
NETWORK_TYPES = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "drvfs", "fuse.sshfs", "virtiofs"})


@dataclass(frozen=True, slots=True)
class Disk:
    folder: str
    space: DiskSpace | None
    filesystem: str | None
    device: str | None
    rotational: bool | None = None  # None: unknown

    @property
    def over_network(self) -> bool:
        return self.filesystem in NETWORK_TYPES


def probe(system: System, folder: Path) -> Disk:
    """The disk of a folder, or of its nearest existing ancestor."""
    mount = _mount_of(system, str(folder))
    filesystem, device = mount or (None, None)
    return Disk(
        str(folder), system.disk_space(folder), filesystem, device, _rotational(system, device)
    )


def _mount_of(system: System, folder: str) -> tuple[str, str] | None:
    """(file system, device) of the longest mount point above a folder."""
    best: tuple[int, tuple[str, str]] | None = None
    for line in (system.read("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 5 or len(tail) < 2:
            continue
        point = fields[4].replace("\\040", " ")
        inside = folder == point or folder.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= best[0]):
            best = (len(point), (tail[0], tail[1]))
    return best[1] if best else None


def _rotational(system: System, device: str | None) -> bool | None:
    """Whether a block device spins; dm and md devices are as slow as their slowest member."""
    if not device or not device.startswith("/dev/"):
        return None
    name = system.resolve(device).rpartition("/")[2]
    if name.startswith(VIRTUAL):
        return None  # virtual disks say 1 whatever is below them
    folder = system.resolve(f"/sys/class/block/{name}")
    members = system.names(f"{folder}/slaves")
    found = [_rotational(system, f"/dev/{member}") for member in members]
    if found:
        return None if None in found else any(found)
    for place in (folder, folder.rpartition("/")[0]):
        text = (system.read(f"{place}/queue/rotational") or "").strip()
        if text in {"0", "1"}:
            return text == "1"
    return None
