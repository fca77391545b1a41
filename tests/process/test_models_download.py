"""Downloads against a hub whose answers go wrong: what arrives is right, and only what is missing moves."""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_hub import REPO, REVISION, FakeHub, Fault, safetensors

from glm53ctl.env import Environ
from glm53ctl.errors import ArtifactError, Conflict
from glm53ctl.fetch import ensure_model
from glm53ctl.fetch.catalog import KnownFile, Release
from glm53ctl.fetch.download import download
from glm53ctl.fetch.job import Job, Policy
from glm53ctl.fetch.lockfile import LOCK_NAME, PARTIAL, read_lock
from glm53ctl.fetch.store import is_incomplete
from glm53ctl.probes.system import DiskSpace

QUICK = Policy(stall_s=0.3, connect_s=1.0, retries=3, backoff_first_s=0.01, backoff_cap_s=0.02)
SHARD = "model-00001-of-00002.safetensors"
OTHER = "model-00002-of-00002.safetensors"
NOISE = random.Random(7)
FILES = {
    "config.json": b'{"architectures": []}\n',
    "tokenizer.json": b'{"version": "1.0"}\n',
    ".gitattributes": b"*.safetensors filter=lfs\n",
    SHARD: safetensors(NOISE.randbytes(400_000)),
    OTHER: safetensors(NOISE.randbytes(150_000)),
    "kpool_aux.safetensors": safetensors(NOISE.randbytes(9_000)),
}
WANTED = {name: body for name, body in FILES.items() if not name.startswith(".")}
RELEASE = Release(
    "glm-5.3-flash", REPO, "3.05bpw", REVISION, "flash", sum(map(len, WANTED.values())),
    "kpool_aux.safetensors", (),
)  # fmt: skip


@pytest.fixture
def hub():
    made = FakeHub(dict(FILES))
    yield made
    made.close()


class Download:
    """A job for the fake hub, its folder and what it said."""

    def __init__(self, hub: FakeHub, folder: Path, **changes) -> None:
        self.notes: list[str] = []
        environ = Environ({"HF_ENDPOINT": hub.url, "HOME": str(folder)})
        job = Job(RELEASE, folder / "flash", environ, policy=QUICK)
        self.job = replace(job, **changes)

    @property
    def folder(self) -> Path:
        return self.job.folder

    def __call__(self):
        return download(self.job, self.notes.append)

    def ensure(self, *, offline=False):
        return ensure_model(self.job, offline=offline, agree=lambda _: True, note=self.notes.append)

    def assert_whole(self) -> None:
        there = {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file() and path.name != LOCK_NAME
        }
        assert there == WANTED
        lock = read_lock(self.folder)
        assert lock is not None
        assert lock.complete
        assert {item.path: item.sha256 for item in lock.files} == {
            name: hashlib.sha256(body).hexdigest() for name, body in WANTED.items()
        }


@pytest.fixture
def get(hub, tmp_path) -> Download:
    return Download(hub, tmp_path)


def spoken(get: Download, capfd) -> str:
    return "\n".join(get.notes) + capfd.readouterr().err


def test_a_download_is_whole_locked_and_leaves_nothing_else(hub, get):
    lock = get()
    get.assert_whole()
    assert (lock.repo, lock.revision) == (REPO, REVISION)
    assert not (get.folder / PARTIAL).exists()
    body = json.loads((get.folder / LOCK_NAME).read_text())
    by_path = {item["path"]: item for item in body["files"]}
    assert by_path[SHARD]["source"] == "hub"
    assert by_path["config.json"]["source"] == "learned"
    before = len(hub.requests)
    assert not is_incomplete(get.folder)
    get.ensure()
    assert len(hub.requests) == before


def test_a_dropped_connection_is_resumed_where_it_broke(hub, get, capfd):
    hub.faults[SHARD] = [Fault("drop", after=100_000), Fault("drop", after=50_000)]
    get()
    get.assert_whole()
    spans = [span for _, path, span in hub.requests if path.endswith(SHARD) and "/data/" in path]
    assert spans == [None, "bytes=100000-", "bytes=150000-"]
    assert f"{SHARD}: " in spoken(get, capfd)


def test_T081_a_stall_is_cut_and_resumed(hub, get, capfd):
    hub.faults[SHARD] = [Fault("stall", after=65_536, seconds=5)]
    started = time.monotonic()
    get()
    get.assert_whole()
    assert time.monotonic() - started < 4
    assert f"{SHARD}: no bytes for 0.3 s" in spoken(get, capfd)
    assert ("GET", f"/data/{SHARD}", "bytes=65536-") in hub.requests


def test_T089_no_byte_at_all_is_a_stall_too_and_said(hub, get, capfd):
    hub.faults[OTHER] = [Fault("stall", seconds=5)]
    get()
    get.assert_whole()
    assert "retry 1/3" in spoken(get, capfd)


def test_wrong_bytes_are_fetched_again_from_the_start(hub, get, capfd):
    hub.faults[SHARD] = [Fault("wrong", after=300_000)]
    get()
    get.assert_whole()
    text = spoken(get, capfd)
    assert f"{SHARD}: wrong content" in text
    assert hub.fetched().count(SHARD) == 2
    assert hub.fetched().count(OTHER) == 1


def test_wrong_bytes_twice_are_an_error_and_nothing_wrong_stays(hub, get):
    hub.faults["config.json"] = [Fault("wrong"), Fault("wrong")]
    with pytest.raises(ArtifactError, match=r"config\.json: wrong content.*twice") as caught:
        get()
    assert (caught.value.exit_code, caught.value.error_id) == (7, "ART-004")
    assert not (get.folder / "config.json").exists()
    get()
    get.assert_whole()


def test_429_waits_as_long_as_it_is_told(hub, get, capfd):
    hub.faults[OTHER] = [Fault("status", status=429, headers={"retry-after": "1"})]
    started = time.monotonic()
    get()
    get.assert_whole()
    assert time.monotonic() - started >= 1
    assert "HTTP 429; retry 1/3 in 1 s" in spoken(get, capfd)


def test_a_server_error_ends_after_the_last_retry_and_the_next_run_goes_on(hub, get):
    hub.faults[SHARD] = [Fault("drop", after=100_000)] + [Fault("status", status=503)] * 4
    with pytest.raises(ArtifactError, match="HTTP 503") as caught:
        get()
    assert "models pull" in str(caught.value.hint)
    get()
    get.assert_whole()
    last = [span for _, path, span in hub.requests if path == f"/data/{SHARD}"][-1]
    assert last == "bytes=100000-"


def test_a_server_that_ignores_the_range_is_taken_from_the_start(hub, get):
    hub.faults[SHARD] = [Fault("drop", after=100_000), Fault("no-range")]
    get()
    get.assert_whole()


def test_a_redirect_to_a_dead_host_names_the_host(hub, get):
    hub.faults[SHARD] = [Fault("redirect", to="http://127.0.0.1:9/gone")] * 4
    with pytest.raises(ArtifactError, match=r"127\.0\.0\.1:9 \(where .* keeps the data\)"):
        get()


def test_T086_T087_a_mirror_whose_data_host_is_blocked_is_found_at_once(hub, get, tmp_path):
    hub.data_host = "http://127.0.0.1:9"
    started = time.monotonic()
    with pytest.raises(ArtifactError, match=r"127\.0\.0\.1:9 \(where 127") as caught:
        get()
    assert time.monotonic() - started < 5
    assert (caught.value.exit_code, caught.value.error_id) == (7, "ART-005")
    other = FakeHub(dict(FILES))
    try:
        second = Download(hub, tmp_path, mirrors=(other.url,))
        second.job = replace(second.job, mirrors=(hub.url + "/", other.url))
        second()
        second.assert_whole()
    finally:
        other.close()


def test_a_token_goes_to_the_hub_and_never_to_a_mirror(hub, tmp_path):
    mirror = FakeHub(dict(FILES), revision="0" * 40)
    secret = Environ({"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_" + "x" * 34, "HOME": str(tmp_path)})
    job = Job(RELEASE, tmp_path / "flash", secret, mirrors=(mirror.url,), policy=QUICK)
    notes: list[str] = []
    try:
        download(job, notes.append)
    finally:
        mirror.close()
    assert "it serves revision 000000000000, not 332ab457b709" in notes[0]
    assert set(mirror.tokens) == {None}
    assert f"Bearer hf_{'x' * 34}" in hub.tokens


def test_a_listing_that_is_rate_limited_is_waited_for(hub, get):
    hub.listing_faults = [Fault("status", status=429, headers={"retry-after": "0"})]
    get()
    get.assert_whole()


def test_something_that_is_no_hub_is_refused(hub, get, monkeypatch):
    monkeypatch.setattr(hub, "revision", "")
    with pytest.raises(ArtifactError, match="serves revision"):
        get()


def test_a_confirmed_hash_is_the_law(hub, tmp_path):
    known = KnownFile("tokenizer.json", len(FILES["tokenizer.json"]), "0" * 64, confirmed=True)
    law = Download(hub, tmp_path, release=replace(RELEASE, known=(known,)))
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        law()


def test_T085_a_truncated_file_is_found_and_only_that_one_fetched(hub, get):
    get()
    (get.folder / OTHER).write_bytes(b"")
    assert is_incomplete(get.folder)
    hub.requests.clear()
    get.ensure()
    get.assert_whole()
    assert hub.fetched() == [OTHER]


def test_a_damaged_header_of_the_right_size_is_found_on_a_quick_look(hub, get):
    get()
    with (get.folder / SHARD).open("r+b") as stream:
        stream.write(b"\x07")
    assert is_incomplete(get.folder)
    hub.requests.clear()
    get.ensure()
    get.assert_whole()
    assert hub.fetched() == [SHARD]


def test_files_that_are_here_without_a_lock_are_hashed_not_fetched(hub, get, capfd):
    get.folder.mkdir()
    (get.folder / SHARD).write_bytes(FILES[SHARD])
    (get.folder / OTHER).write_bytes(bytes(len(FILES[OTHER])))
    get()
    get.assert_whole()
    assert SHARD not in hub.fetched()
    assert f"{OTHER} is damaged; fetching it again" in spoken(get, capfd)


def test_T083_no_room_is_an_error_before_the_first_byte_with_what_is_missing(hub, tmp_path):
    total, here = 125 * 10**9, 64 * 10**9
    sizes = {SHARD: here, OTHER: total - here}
    tree = [
        {"type": "file", "path": name, "size": size, "oid": "1" * 40,
         "lfs": {"oid": "2" * 64, "size": size, "pointerSize": 134}}
        for name, size in sizes.items()
    ]  # fmt: skip
    hub.tree = lambda: tree
    full = DiskSpace(free_bytes=40 * 10**9, total_bytes=10**12, free_inodes=10**6)
    get = Download(hub, tmp_path, disk=lambda _: full)
    get.folder.mkdir()
    with (get.folder / SHARD).open("wb") as stream:
        stream.truncate(here)
    with pytest.raises(ArtifactError) as caught:
        get()
    assert (caught.value.exit_code, caught.value.error_id) == (7, "ART-003")
    assert "has 40.0 GB free, 61.0 GB of 125.0 GB are still to fetch" in caught.value.message
    assert hub.fetched() == []


def test_T080_the_lock_of_a_dead_download_does_not_hold_anybody_up(hub, get):
    lock = get.folder / PARTIAL / "lock"
    lock.parent.mkdir(parents=True)
    lock.write_text('{"pid": 999999}')
    os.utime(lock, (1.0, 1.0))
    get()
    get.assert_whole()
    assert "the download of process 999999 ended" in get.notes[0]


def test_T081_a_live_download_keeps_its_lock(hub, get, tmp_path):
    hub.faults[SHARD] = [Fault("slow", seconds=0.05)]
    first = threading.Thread(target=get)
    first.start()
    while not (get.folder / LOCK_NAME).exists():
        time.sleep(0.01)
    with pytest.raises(Conflict, match=f"process {os.getpid()} downloads into") as caught:
        Download(hub, tmp_path)()
    assert caught.value.exit_code == 6
    first.join()
    get.assert_whole()


def test_offline_proves_completeness_without_a_network(hub, get):
    get()
    before = len(hub.requests)
    assert get.ensure(offline=True) == read_lock(get.folder)
    (get.folder / SHARD).unlink()
    with pytest.raises(ArtifactError, match=f"downloads are off: {SHARD} \\(missing\\)"):
        get.ensure(offline=True)
    assert len(hub.requests) == before


def test_an_unwritable_place_is_named(hub, tmp_path):
    (tmp_path / "file").write_text("")
    blocked = Download(hub, tmp_path / "file")
    with pytest.raises(ArtifactError, match="cannot write to"):
        blocked()


def test_a_proxy_that_refuses_is_said(hub, get, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    with pytest.raises(ArtifactError, match="cannot be downloaded"):
        get()
    assert hub.requests == []
