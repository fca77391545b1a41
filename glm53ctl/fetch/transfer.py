"""One file over HTTP into a partial file: resumed, watched for stalls, hashed while it arrives.

Every attempt starts where the last one stopped. Attempts that bring bytes are free; those in a row that
bring none are counted, and the last of them ends the transfer.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from glm53ctl.errors import ArtifactError
from glm53ctl.fetch import verify
from glm53ctl.fetch.hub import retry_after_s, transport_words
from glm53ctl.fetch.job import Policy
from glm53ctl.fetch.lockfile import LockedFile
from glm53ctl.render import gigabytes

_FLUSH_BYTES = 256 << 20
_RESUME = "what has arrived is kept; go on with: glm53ctl models pull"


@dataclass(frozen=True, slots=True)
class Watcher:
    """How a transfer talks: bytes that count, words for the user, and whether to stop."""

    on_bytes: Callable[[int], None]
    note: Callable[[str], None]
    cancelled: threading.Event = field(default_factory=threading.Event)


class Cancelled(Exception):
    """The download was stopped from outside."""


class _Again(Exception):
    """This attempt failed, the next may not. `wait_s` is what the server asked for."""

    def __init__(self, why: str, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.wait_s = wait_s


class _Part:
    """The partial file and the hash of what it holds."""

    def __init__(self, path: Path, on_bytes: Callable[[int], None]) -> None:
        self.path = path
        self.size_bytes = 0
        self._on_bytes = on_bytes
        self._hash = hashlib.sha256()
        self._flushed_bytes = 0
        if path.exists():
            for chunk in verify.read_uncached(path):
                self._count(chunk)
        self._stream = path.open("ab")

    def write(self, chunk: bytes) -> None:
        self._stream.write(chunk)
        self._count(chunk)
        if self.size_bytes - self._flushed_bytes >= _FLUSH_BYTES:
            self._flush()

    def start_over(self) -> None:
        self._on_bytes(-self.size_bytes)
        self._stream.truncate(0)
        self.size_bytes = self._flushed_bytes = 0
        self._hash = hashlib.sha256()

    def close(self) -> str:
        """Everything on disk; returns the sha256."""
        self._flush()
        self._stream.close()
        return self._hash.hexdigest()

    def _count(self, chunk: bytes) -> None:
        self._hash.update(chunk)
        self.size_bytes += len(chunk)
        self._on_bytes(len(chunk))

    def _flush(self) -> None:
        """To the disk, and out of the page cache: a download must not evict everything else."""
        self._stream.flush()
        fd = self._stream.fileno()
        os.fdatasync(fd)
        os.posix_fadvise(fd, self._flushed_bytes, 0, os.POSIX_FADV_DONTNEED)
        self._flushed_bytes = self.size_bytes


@dataclass(frozen=True, slots=True)
class Transfer:
    """Fetches files from one endpoint. Safe to share between threads."""

    client: httpx.Client
    headers: dict[str, str]
    policy: Policy
    watcher: Watcher

    def fetch(self, address: str, item: LockedFile, part_path: Path) -> str:
        """Bring `part_path` to the locked content and return its sha256.

        Raises ArtifactError when retries are used up, the content stays wrong, or the disk is full;
        Cancelled when the watcher says so. The partial file stays for the next run.
        """
        for round_ in (1, 2):
            digest = self._complete(address, item, part_path)
            wrong = verify.mismatch(item, digest, part_path)
            if wrong is None:
                return digest
            self.watcher.on_bytes(-part_path.stat().st_size)
            part_path.unlink()
            if round_ == 1:
                self.watcher.note(f"{item.path}: {wrong}; fetching it again from the start")
        raise ArtifactError(
            f"{item.path}: {wrong}, twice from {httpx.URL(address).host}",
            hint="a proxy or a mirror changes the file: try another network or GLM53_MIRRORS",
            error_id="ART-004",
        )

    def _complete(self, address: str, item: LockedFile, part_path: Path) -> str:
        """Attempt until every byte is there; returns the sha256 of what is."""
        try:
            part = _Part(part_path, self.watcher.on_bytes)
            try:
                self._persist(address, item, part)
            finally:
                digest = part.close()
        except OSError as err:
            raise ArtifactError(
                f"{item.path}: cannot be written: {err.strerror}", hint=_RESUME, error_id="ART-003"
            ) from err
        return digest

    def _persist(self, address: str, item: LockedFile, part: _Part) -> None:
        failures = 0
        while part.size_bytes != item.size_bytes:
            before = part.size_bytes
            try:
                self._attempt(address, item, part)
            except _Again as again:
                failures = 1 if part.size_bytes > before else failures + 1
                self._back_off(item, again, failures)

    def _back_off(self, item: LockedFile, again: _Again, failures: int) -> None:
        policy = self.policy
        if failures > policy.retries:
            raise ArtifactError(f"{item.path}: {again}", hint=_RESUME, error_id="ART-005")
        wait_s = again.wait_s
        if wait_s is None:
            wait_s = min(policy.backoff_cap_s, policy.backoff_first_s * 2 ** (failures - 1))
        wait_s = min(wait_s, policy.longest_wait_s)
        self.watcher.note(
            f"{item.path}: {again}; retry {failures}/{policy.retries} in {wait_s:.0f} s"
        )
        if self.watcher.cancelled.wait(wait_s):
            raise Cancelled

    def _attempt(self, address: str, item: LockedFile, part: _Part) -> None:
        """One request. Returns when the file is whole, raises _Again when it is not."""
        if part.size_bytes > item.size_bytes:
            part.start_over()
        headers = dict(self.headers)
        if part.size_bytes:
            headers["Range"] = f"bytes={part.size_bytes}-"
        limits = httpx.Timeout(self.policy.stall_s, connect=self.policy.connect_s)
        try:
            with self.client.stream("GET", address, headers=headers, timeout=limits) as answer:
                self._accept(answer, item, part)
                for chunk in answer.iter_raw():  # as it comes: a broken connection loses nothing
                    part.write(chunk)
                    if self.watcher.cancelled.is_set():
                        raise Cancelled
                    if part.size_bytes > item.size_bytes:
                        part.start_over()
                        raise _Again(f"more than its {item.size_bytes} bytes arrived")
        except httpx.ReadTimeout as err:
            have = gigabytes(part.size_bytes)
            raise _Again(f"no bytes for {self.policy.stall_s:g} s at {have}") from err
        except httpx.HTTPError as err:
            raise _Again(transport_words(err, address)) from err
        if part.size_bytes < item.size_bytes:
            raise _Again(f"the connection ended at {part.size_bytes} of {item.size_bytes} bytes")

    def _accept(self, answer: httpx.Response, item: LockedFile, part: _Part) -> None:
        """Check that the answer continues what we have."""
        status = answer.status_code
        host = answer.url.host
        if status in {401, 403, 404, 410}:
            raise ArtifactError(f"{host}: HTTP {status} for {item.path}", error_id="ART-005")
        if status == 416:
            part.start_over()
        if status >= 400:
            raise _Again(f"{host}: HTTP {status}", retry_after_s(answer.headers))
        if part.size_bytes:
            begin = answer.headers.get("content-range", "").removeprefix("bytes ").partition("-")[0]
            if status == 206 and begin != str(part.size_bytes):
                part.start_over()
                raise _Again(f"{host} sent another range than asked for")
            if status == 200:
                part.start_over()
