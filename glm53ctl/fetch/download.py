"""A whole checkpoint into a folder: only what is missing, several files at a time, each proved by hash.

Files arrive in a hidden folder inside and are moved when their bytes are right, so what is in the
checkpoint folder is whole. One downloader per folder; its lock dies with it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

import httpx

from glm53ctl.errors import ArtifactError, Conflict
from glm53ctl.fetch import hub, verify
from glm53ctl.fetch.job import Job, Policy
from glm53ctl.fetch.lockfile import PARTIAL, Lock, LockedFile, part_path, read_lock, write_lock
from glm53ctl.fetch.progress import DownloadView, Meter
from glm53ctl.fetch.space import SPARE_BYTES, check_room
from glm53ctl.fetch.transfer import Transfer, Watcher
from glm53ctl.supervisor.state import try_lock

_TICK_S = 0.2
_ROOM_CHECK_BYTES = 10 * 10**9


def download(job: Job, note: Callable[[str], None]) -> Lock:
    """Bring a folder to the pinned revision and return its lock, every file verified.

    Keeps what is right, resumes what is partial, replaces what is wrong. Raises ArtifactError, or
    Conflict when another process downloads into this folder; KeyboardInterrupt leaves a state from
    which the next call goes on.
    """
    with _exclusive(job.folder, note), _client(job.policy) as client:
        endpoint, listed = hub.choose(
            job.release, hub.endpoints(job.environ, job.mirrors), client, note
        )
        lock = merge(read_lock(job.folder), listed)
        write_lock(job.folder, lock)
        work = verify.missing(job.folder, lock)
        partial = _partial_bytes(job.folder, work)
        to_fetch = sum(item.size_bytes for item in work if _absent(job.folder, item)) - partial
        _check_room(job, lock, to_fetch, len(work))
        note(
            f"{len(lock.files) - len(work)} of {len(lock.files)} files are here; from {endpoint.url}"
        )
        return _Run(job, endpoint, client, lock).run(work)


def merge(old: Lock | None, listed: Lock) -> Lock:
    """The listing, with what the old lock of the same revision had learned and verified."""
    if old is None or (old.repo, old.revision) != (listed.repo, listed.revision):
        return listed
    before = {item.path: item for item in old.files}
    lock = listed
    for item in listed.files:
        known = before.get(item.path)
        same = known is not None and known.size_bytes == item.size_bytes
        if known is not None and same and item.sha256 in {None, known.sha256}:
            lock = lock.with_file(known)
    return lock


def _absent(folder: Path, item: LockedFile) -> bool:
    """Whether a file has to be fetched; one of the right size may only need to be hashed."""
    return verify.quick_problem(folder, item) not in {None, verify.UNVERIFIED}


def _partial_bytes(folder: Path, work: list[LockedFile]) -> int:
    parts = (part_path(folder, item) for item in work)
    return sum(path.stat().st_size for path in parts if path.exists())


def _check_room(job: Job, lock: Lock, missing_bytes: int, missing_files: int) -> None:
    disk = job.disk(job.folder)
    if disk is not None:
        check_room(
            job.folder,
            disk,
            missing_bytes=missing_bytes,
            total_bytes=lock.total_bytes,
            missing_files=missing_files,
        )


def _client(policy: Policy) -> httpx.Client:
    """Honours the proxy variables of the environment; no limit on the length of a transfer."""
    limits = httpx.Limits(max_connections=2 * policy.workers)
    return httpx.Client(follow_redirects=True, limits=limits)


@contextmanager
def _exclusive(folder: Path, note: Callable[[str], None]) -> Generator[None]:
    """Hold the folder's download lock. Raises Conflict naming the holder, ArtifactError for the disk."""
    partial = folder / PARTIAL
    try:
        partial.mkdir(parents=True, exist_ok=True)
        left_by = _holder(partial / "lock")
        fd = try_lock(partial / "lock")
    except OSError as err:
        raise ArtifactError(
            f"cannot write to {folder}: {err.strerror}",
            hint="choose another place: GLM53_MODELS_DIR=/path glm53ctl models pull",
            error_id="ART-003",
        ) from err
    if fd is None:
        raise Conflict(
            f"process {left_by or 'unknown'} downloads into {folder} already",
            hint="wait for it, or stop it: what has arrived is kept",
        )
    if left_by is not None:
        note(f"the download of process {left_by} ended before it was done; going on from there")
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"pid": os.getpid()}).encode(), 0)
        yield
        (partial / "lock").unlink(missing_ok=True)
        with suppress(OSError):
            partial.rmdir()
    finally:
        os.close(fd)


def _holder(path: Path) -> int | None:
    """The pid that is written in a lock file, whether it still holds it or not."""
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


class _Run:
    """One download with its threads. The lock file is written by whoever finishes a file."""

    def __init__(self, job: Job, endpoint: hub.Endpoint, client: httpx.Client, lock: Lock) -> None:
        self._job = job
        self._endpoint = endpoint
        self._lock = lock
        self._guard = threading.Lock()
        self._meter = Meter(lock.total_bytes)
        self._view = DownloadView("model", self._meter)
        self._watcher = Watcher(self._meter.add, self._view.note)
        self._transfer = Transfer(client, endpoint.headers, job.policy, self._watcher)

    def run(self, work: list[LockedFile]) -> Lock:
        """Bring all files. Raises the first failure; the others stop where they are."""
        self._meter.start(self._lock.total_bytes - sum(item.size_bytes for item in work))
        todo: SimpleQueue[LockedFile] = SimpleQueue()
        for item in work:
            todo.put(item)
        done: SimpleQueue[BaseException | None] = SimpleQueue()
        # Daemons: one that waits for a stalled server must not hold up the end of the program.
        for _ in range(min(self._job.policy.workers, len(work))):
            threading.Thread(target=self._work, args=(todo, done), daemon=True).start()
        try:
            self._follow(done, len(work))
        except KeyboardInterrupt:
            self._view.note("stopped; what has arrived is kept, go on with: glm53ctl models pull")
            raise
        finally:
            self._watcher.cancelled.set()
            self._view.close()
        return self._lock

    def _work(self, todo: SimpleQueue[LockedFile], done: SimpleQueue[BaseException | None]) -> None:
        while not self._watcher.cancelled.is_set():
            try:
                self._bring(todo.get_nowait())
            except Empty:
                return
            except BaseException as err:  # noqa: BLE001 - raised again in the main thread
                done.put(err)
            else:
                done.put(None)

    def _follow(self, done: SimpleQueue[BaseException | None], count: int) -> None:
        checked_bytes = self._meter.done_bytes
        while count:
            with suppress(Empty):
                failure = done.get(timeout=_TICK_S)
                count -= 1
                if failure is not None:
                    raise failure
            self._draw()
            if self._meter.done_bytes - checked_bytes > _ROOM_CHECK_BYTES:
                checked_bytes = self._meter.done_bytes
                self._check_room_left()
        self._draw(last=True)

    def _draw(self, *, last: bool = False) -> None:
        verified = sum(item.verified for item in self._lock.files)
        self._view.draw(f"{verified}/{len(self._lock.files)} verified", last=last)

    def _check_room_left(self) -> None:
        """Somebody else may fill the disk while we do."""
        disk = self._job.disk(self._job.folder)
        if disk is not None and disk.free_bytes < SPARE_BYTES // 2:
            _check_room(self._job, self._lock, self._meter.total_bytes - self._meter.done_bytes, 1)

    def _bring(self, item: LockedFile) -> None:
        """One file to its place: kept when its bytes are right, else fetched."""
        target = self._job.folder / item.path
        digest = self._kept(item, target)
        if digest is None:
            part = part_path(self._job.folder, item)
            address = self._endpoint.address(self._job.release, item.path)
            digest = self._transfer.fetch(address, item, part)
            target.parent.mkdir(parents=True, exist_ok=True)
            part.replace(target)
            _sync_folder(target.parent)
        with self._guard:
            self._lock = self._lock.with_file(verify.learned(item, digest))
            write_lock(self._job.folder, self._lock)

    def _kept(self, item: LockedFile, target: Path) -> str | None:
        """The sha256 of a file that is here already and right; its time counts, not its bytes twice."""
        if verify.quick_problem(self._job.folder, item) != verify.UNVERIFIED:
            return None
        digest = verify.sha256_of(target, self._meter.add)
        if verify.mismatch(item, digest, target) is None:
            return digest
        self._meter.add(-item.size_bytes)
        self._view.note(f"{item.path} is damaged; fetching it again")
        return None


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
