"""The parts of a download that decide: room, rates, locks and checks, without a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm53ctl.env import Environ
from glm53ctl.errors import ArtifactError
from glm53ctl.fetch import FLASH_RELEASE, ensure_model, is_incomplete, verify
from glm53ctl.fetch.download import merge
from glm53ctl.fetch.hub import DEFAULT_ENDPOINT, endpoints, retry_after_s
from glm53ctl.fetch.job import Job
from glm53ctl.fetch.lockfile import LOCK_NAME, Lock, LockedFile, read_lock, write_lock
from glm53ctl.fetch.progress import Meter
from glm53ctl.fetch.space import SPARE_BYTES, check_room
from glm53ctl.probes.system import DiskSpace

SIZES = st.integers(0, 2 * 10**11)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_pinned_release_is_the_documented_one():
    assert FLASH_RELEASE.repo == "turboderp/GLM-5.3-Flash-exl3"
    assert FLASH_RELEASE.revision == "332ab457b709b7ba30dd9a448be5de03b80a7ac9"
    assert FLASH_RELEASE.total_bytes == 125_263_712_676
    assert all(len(item.sha256) == 64 for item in FLASH_RELEASE.known)
    assert sum(item.confirmed for item in FLASH_RELEASE.known) == 5
    probe = FLASH_RELEASE.known_file(FLASH_RELEASE.probe)
    assert probe is not None


def test_an_eta_needs_five_seconds_of_data_and_follows_the_rate():
    clock = Clock()
    meter = Meter(1_000_000_000, clock)
    meter.start(200_000_000)
    for _ in range(4):
        clock.now += 1
        meter.add(10_000_000)
        meter.sample()
        assert meter.left_s is None
    clock.now += 1
    meter.add(10_000_000)
    meter.sample()
    assert meter.rate_bytes_per_s == pytest.approx(10e6)
    assert meter.left_s == pytest.approx(75.0)
    for _ in range(60):
        clock.now += 1
        meter.sample()
    assert meter.rate_bytes_per_s < 0.2e6


def test_a_file_that_starts_over_does_not_make_a_negative_rate():
    clock = Clock()
    meter = Meter(100, clock)
    for change in (50, -50, 10):
        clock.now += 1
        meter.add(change)
        meter.sample()
    assert meter.rate_bytes_per_s > 0
    assert meter.done_bytes == 10


@given(free=SIZES, missing=SIZES)
def test_T083_room_is_for_what_is_missing(free, missing):
    disk = DiskSpace(free_bytes=free, total_bytes=10**13, free_inodes=10**6)
    fits = missing == 0 or free >= missing + SPARE_BYTES
    try:
        check_room(Path("/m"), disk, missing_bytes=missing, total_bytes=10**12, missing_files=3)
    except ArtifactError as err:
        assert not fits
        assert err.exit_code == 7  # noqa: PT017
    else:
        assert fits


@pytest.mark.parametrize(
    ("disk", "words"),
    [(DiskSpace(10**12, 10**12, 10**6, read_only=True), "read-only"),
     (DiskSpace(10**12, 10**12, 11), "only 11 inodes for 17 files")],
)  # fmt: skip
def test_read_only_disks_and_missing_inodes_are_named(disk, words):
    with pytest.raises(ArtifactError, match=words):
        check_room(Path("/m"), disk, missing_bytes=1, total_bytes=1, missing_files=17)
    uncounted = DiskSpace(10**12, 10**12, 0)
    check_room(Path("/m"), uncounted, missing_bytes=1, total_bytes=1, missing_files=17)


FILES = st.lists(
    st.builds(
        LockedFile,
        path=st.text("abc", min_size=1, max_size=3),
        size_bytes=st.integers(0, 9),
        sha256=st.none() | st.just("1" * 64) | st.just("2" * 64),
        verified=st.booleans(),
    ),
    unique_by=lambda item: item.path,
)


@given(old=FILES, new=FILES)
def test_merge_keeps_only_what_is_still_true(old, new):
    before, listed = Lock("r", "v", tuple(old)), Lock("r", "v", tuple(new))
    found = merge(before, listed)
    assert [item.path for item in found.files] == [item.path for item in new]
    by_path = {item.path: item for item in old}
    for item, fresh in zip(found.files, new, strict=True):
        assert item.size_bytes == fresh.size_bytes
        if fresh.sha256:
            assert item.sha256 == fresh.sha256
        if item.verified:
            assert fresh.verified or by_path[item.path].verified
    other = Lock("r", "another", tuple(old))
    assert merge(other, listed) == merge(None, listed) == listed


@given(files=FILES)
def test_a_lock_survives_its_file(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lock")
    lock = Lock("r", "v", tuple(files))
    write_lock(folder, lock)
    assert read_lock(folder) == lock


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": "other"}', '{"schema": "glm53ctl.lock/1"}', "\0"]
)
def test_a_damaged_lock_is_as_good_as_none(tmp_path, text):
    (tmp_path / LOCK_NAME).write_text(text)
    assert read_lock(tmp_path) is None


def test_quick_look_tells_what_is_wrong(tmp_path):
    def look(content: bytes | None, size: int, *, verified: bool = True) -> str | None:
        file = tmp_path / "a.safetensors"
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content)
        return verify.quick_problem(tmp_path, LockedFile("a.safetensors", size, verified=verified))

    header = json.dumps({"__metadata__": {}, "t": {"data_offsets": [0, 4]}}).encode()
    good = len(header).to_bytes(8, "little") + header + b"1234"
    assert look(good, len(good)) is None
    assert look(None, 5) == "missing"
    assert look(good[:-1], len(good)) == f"truncated: {len(good) - 1} bytes, must be {len(good)}"
    assert look(good + b"x", len(good)) == f"too long: {len(good) + 1} bytes, must be {len(good)}"
    assert look(good, len(good), verified=False) == "not verified yet"
    longer = good + b"x"
    assert look(longer, len(longer)) == f"{len(longer)} bytes, its header describes {len(good)}"
    broken = len(header).to_bytes(8, "little") + b"\xff" * len(header) + b"1234"
    assert look(broken, len(broken)) == "its safetensors header is damaged"
    assert look(b"\xff" * 20, 20) == "not a safetensors file"


def test_a_folder_of_somebody_else_is_taken_as_it_is(tmp_path):
    assert is_incomplete(tmp_path / "none")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".hidden").touch()
    assert is_incomplete(tmp_path)
    (tmp_path / "config.json").touch()
    assert not is_incomplete(tmp_path)


def test_mirrors_come_first_and_get_no_token():
    environ = Environ({"HF_TOKEN": "hf_x"})
    found = endpoints(environ, ("https://a/", DEFAULT_ENDPOINT + "/"))
    assert [(item.url, item.token) for item in found] == [
        ("https://a", False),
        (DEFAULT_ENDPOINT, "hf_x"),
    ]
    assert retry_after_s({"retry-after": " 7 "}) == 7
    assert retry_after_s({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}) is None
    assert retry_after_s({}) is None


def test_nothing_is_fetched_without_consent(tmp_path):
    asked: list[int] = []
    job = Job(FLASH_RELEASE, tmp_path / "m", Environ({}))
    with pytest.raises(ArtifactError, match=r"125\.3 GB to download") as caught:
        ensure_model(job, offline=False, agree=lambda count: bool(asked.append(count)), note=print)
    assert (asked, caught.value.exit_code) == ([FLASH_RELEASE.total_bytes], 7)
    assert not (tmp_path / "m").exists()


WHOLE = {
    "path": "a/b.bin", "size_bytes": 5, "sha256": None, "git_oid": None,
    "source": "hub", "verified": False,
}  # fmt: skip
ODD = [None, True, 5, -1, 1.5, "x/", "a\0b", "../x", "/etc/passwd", "a//b", "a/./b", "\ud800"]
ODD += ["a\x1b[2J", "", [], {}, "n" * 256, "n/" * 900 + "n", 10**30]


FITS = {"sha256": [None], "git_oid": [None], "verified": [True], "size_bytes": [5]}


def write_odd(folder, **changed):
    body = {"schema": "glm53ctl.lock/1", "repo": "r", "revision": "v", "files": [WHOLE]}
    (folder / LOCK_NAME).write_text(json.dumps({**body, **changed}))


@pytest.mark.parametrize("key", [key for key in WHOLE if key != "source"])
def test_a_lock_with_a_hostile_value_is_as_good_as_none(tmp_path, key):
    write_odd(tmp_path)
    assert read_lock(tmp_path) is not None
    for value in ODD:
        write_odd(tmp_path, files=[{**WHOLE, key: value}])
        fits = any(value is one or value == one != 1 for one in FITS.get(key, []))
        assert (read_lock(tmp_path) is not None) == fits, value


@pytest.mark.parametrize(
    "changed",
    [{"files": [{**WHOLE, "source": 5}]}, {"files": None}, {"files": [5]}, {"files": {"a": 1}},
     {"repo": None}, {"revision": 5}, {"revision": "\ud800"}, {"files": [{**WHOLE, "more": 1}]}],
)  # fmt: skip
def test_so_is_one_of_another_shape(tmp_path, changed):
    write_odd(tmp_path, **changed)
    assert read_lock(tmp_path) is None


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b"\xff\xfe{}", b"9" * 9000, b'{"schema": 1e999}']
)
def test_so_is_what_is_no_document(tmp_path, content):
    (tmp_path / LOCK_NAME).write_bytes(content)
    assert read_lock(tmp_path) is None


def test_a_header_nested_without_end_is_damage(tmp_path):
    file = tmp_path / "a.safetensors"
    for header in (
        b"[" * 100_000,
        b'{"a": {"data_offsets": [0, 1e999]}}',
        b'{"a": {"data_offsets": []}}',
    ):
        file.write_bytes(len(header).to_bytes(8, "little") + header)
        assert verify.safetensors_problem(file) == "its safetensors header is damaged"
