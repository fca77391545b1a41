"""Getting the checkpoint: a pinned revision, downloaded, verified, found again.

`ensure_model` is what `up` calls; it needs no network when everything is there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from glm53ctl.errors import ArtifactError
from glm53ctl.fetch import verify
from glm53ctl.fetch.catalog import FLASH_RELEASE, Release
from glm53ctl.fetch.job import Job
from glm53ctl.fetch.lockfile import PARTIAL, Lock, read_lock
from glm53ctl.fetch.store import is_incomplete, size_bytes
from glm53ctl.render import gigabytes

__all__ = ["FLASH_RELEASE", "Job", "Release", "ensure_model", "is_incomplete", "missing_bytes"]

SMALL_BYTES = 10 * 10**9  # a repair of this size needs no question


def ensure_model(
    job: Job,
    *,
    offline: bool,
    agree: Callable[[int], bool],
    note: Callable[[str], None],
    adopt: bool = False,
) -> Lock | None:
    """Make sure that the job's folder holds the release; the lock, or None for a foreign folder.

    Quick when it does: sizes and headers are looked at, nothing is fetched. `agree` is asked before a
    large download, with its bytes. With `adopt` a foreign folder is compared with the hub, gets a lock,
    and what is wrong in it is replaced. Raises ArtifactError when something is missing and may not be
    fetched (offline, or not agreed), and what `download` raises.
    """
    lock = read_lock(job.folder)
    if not is_incomplete(job.folder) and (lock is not None or not adopt):
        return lock
    count = missing_bytes(job.release, job.folder)
    if offline:
        raise ArtifactError(
            f"{job.release.name} is not complete in {job.folder}, and downloads are off: "
            f"{_what_is_missing(job.folder)}",
            hint="without --offline and HF_HUB_OFFLINE: glm53ctl models pull\n"
            "or take a copy you have: glm53ctl models import /path",
            error_id="ART-006",
        )
    if count > SMALL_BYTES and not agree(count):
        raise ArtifactError(
            f"{job.release.name} is not in {job.folder}: {gigabytes(count)} to download",
            hint="agree with --yes, or download it first: glm53ctl models pull --yes\n"
            "the bundled model needs no download: glm53ctl up --model tiny",
            error_id="ART-007",
        )
    from glm53ctl.fetch.download import download  # HTTP, which the quick look does without

    return download(job, note)


def missing_bytes(release: Release, folder: Path) -> int:
    """Bytes still to fetch, as far as it can be told without the hub."""
    lock = read_lock(folder)
    arrived = sum(item.stat().st_size for item in (folder / PARTIAL).glob("*.*"))
    if lock is None:
        return max(0, release.total_bytes - size_bytes(folder) - arrived)
    return max(0, sum(item.size_bytes for item in verify.missing(folder, lock)) - arrived)


def _what_is_missing(folder: Path) -> str:
    lock = read_lock(folder)
    if lock is None:
        return "nothing of it is here"
    problems = verify.quick_problems(folder, lock)
    words = [f"{item.path} ({item.what})" for item in problems[:3]]
    more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
    return ", ".join(words) + more
