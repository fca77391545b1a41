"""What the supervisor keeps on disk and reads from pipes: locks, records, identities, logs, lines."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm53ctl.errors import UsageError
from glm53ctl.plan import CpuPlan, EngineName, ListenPlan, Mode, ModelPlan, Plan
from glm53ctl.supervisor import logs
from glm53ctl.supervisor.ask import aged_record
from glm53ctl.supervisor.classify import Report
from glm53ctl.supervisor.lifecycle import State
from glm53ctl.supervisor.ready import LoadProgress, ReadyPipe, Serving, parse
from glm53ctl.supervisor.record import plan_part, state_part
from glm53ctl.supervisor.state import (
    _ALWAYS,
    Identity,
    Instance,
    boot_id,
    is_locked,
    listen_socket,
    read_record,
    try_lock,
    write_record,
)


def instance(folder: Path, name: str = "t") -> Instance:
    made = Instance.locate(name, folder=folder / "state", runtime_dir=folder / "run")
    made.create()
    return made


def test_the_lock_is_the_truth_and_a_left_over_file_is_not(tmp_path: Path):
    path = instance(tmp_path).lock_path
    path.touch()
    assert not is_locked(path)
    fd = try_lock(path)
    assert fd is not None
    assert is_locked(path)
    assert try_lock(path) is None
    os.close(fd)
    assert not is_locked(path)


def test_a_lock_whose_file_was_removed_is_taken_anew(tmp_path: Path):
    path = instance(tmp_path).lock_path
    first = try_lock(path)
    path.unlink()
    second = try_lock(path)
    assert second is not None
    assert path.stat().st_ino == os.fstat(second).st_ino
    os.close(first)
    os.close(second)


def test_a_process_is_more_than_its_pid():
    me = Identity.of(os.getpid())
    assert me is not None
    assert me.alive()
    assert Identity.from_dict(json.loads(json.dumps(me.to_dict()))) == me
    assert not Identity(me.pid, me.start_ticks + 1, me.boot_id).alive()
    assert not Identity(me.pid, me.start_ticks, "an older boot").alive()
    assert me.boot_id == boot_id()


def test_a_zombie_is_not_alive():
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert Identity.of(process.pid) is None
    process.wait()


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 65])
def test_instance_names_are_plain_file_names(tmp_path: Path, name: str):
    with pytest.raises(UsageError):
        Instance.locate(name, folder=tmp_path, runtime_dir=tmp_path)


def test_a_control_socket_may_lie_deep(tmp_path: Path):
    deep = instance(tmp_path / ("d" * 100) / ("e" * 100))
    with listen_socket(deep.socket_path):
        assert deep.socket_path.is_socket()
        assert deep.socket_path.stat().st_mode & 0o777 == 0o700


def test_records_of_strangers_and_torn_files_read_as_none(tmp_path: Path):
    made = instance(tmp_path)
    assert read_record(made) is None
    for text in ("", "{", "[]", "[" * 100_000, '{"schema": "other/1"}'):
        made.state_path.write_text(text)
        assert read_record(made) is None
    whole = a_record()
    write_record(made, whole)
    assert read_record(made) == {"schema": "glm53ctl.state/1", **whole}
    for name in whole:
        write_record(made, {key: value for key, value in whole.items() if key != name})
        assert read_record(made) is None, name


def a_record() -> dict:
    """What a supervisor writes before its first child."""
    plan = Plan(Mode.CPU, EngineName.CPU, ModelPlan("/m", "m", 1), ListenPlan(), CpuPlan(1, ()))
    others = ("instance", "url", "health", "health_words", "progress", "supervisor", "child")
    return plan_part(plan) | state_part(State(), 0.0) | dict.fromkeys(others) | {"uptime_s": 0.0}


@pytest.mark.parametrize("bad", [float("inf"), float("nan"), "x", None, [], {}])
@pytest.mark.parametrize("name", ["pid", "start_ticks"])
def test_an_identity_of_nonsense_is_nobody(name: str, bad: object):
    assert Identity.from_dict({"pid": 1, "start_ticks": 1, "boot_id": "b", name: bad}) is None


def test_text_that_is_no_utf8_does_not_stop_supervision(tmp_path: Path):
    made = instance(tmp_path)
    write_record(made, a_record() | {"health_words": "no such file: \udcff"})
    assert read_record(made)["health_words"] == "no such file: ?"
    logs.note(made.log_path, "\udcff")
    assert made.log_path.read_text().endswith("supervisor: ?\n")


def test_a_record_that_cannot_be_written_leaves_no_litter(tmp_path: Path):
    made = instance(tmp_path)
    made.state_path.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_record(made, {"phase": "ready"})
    assert {path.name for path in made.folder.iterdir()} == {"logs", "state.json"}


def test_readiness_lines():
    assert parse(b'{"phase": "experts", "done": 3, "total": 42}') == LoadProgress("experts", 3, 42)
    assert parse(b'{"ready": true, "url": "http://x"}') == Serving("http://x")
    failed = b'{"failed": {"id": "ART-002", "message": "truncated", "hint": null}}'
    assert parse(failed) == Report("ART-002", "truncated")


@given(
    st.one_of(st.binary(), st.from_type(dict).map(lambda d: json.dumps(d, default=str).encode()))
)
def test_no_line_of_a_child_breaks_its_supervisor(line: bytes):
    parse(line)


@pytest.mark.parametrize(
    "line", [b"[]", b"1", b'{"phase": 1}', b'{"failed": 3}', b'{"ready": true}', b'{"done": {}}']
)
def test_lines_that_do_not_belong_are_ignored(line: bytes):
    assert parse(line) is None


def test_the_pipe_joins_split_lines_and_notices_the_end():
    read_fd, write_fd = os.pipe()
    pipe = ReadyPipe(read_fd)
    os.write(write_fd, b'{"phase": "a", "done": 1, ')
    assert pipe.read() == []
    os.write(write_fd, b'"total": 2}\nnoise\n{"phase": "b", "done": 2, "total": 2}\n')
    assert [message.phase for message in pipe.read()] == ["a", "b"]
    assert not pipe.closed
    os.close(write_fd)
    assert pipe.read() == []
    assert pipe.closed


def test_logs_rotate_and_keep_a_bounded_number(tmp_path: Path):
    path = tmp_path / "server.log"
    for number in range(9):
        path.write_text(f"{number}" * 100)
        assert logs.rotate(path, max_bytes=100, keep=3)
        assert not path.exists()
    kept = {item.name: item.read_text()[0] for item in tmp_path.iterdir()}
    assert kept == {"server.log.1": "8", "server.log.2": "7", "server.log.3": "6"}
    assert not logs.rotate(path, max_bytes=100)
    path.write_text("small")
    assert not logs.rotate(path, max_bytes=100)


def test_the_tail_reaches_into_the_rotated_file(tmp_path: Path):
    path = tmp_path / "server.log"
    (tmp_path / "server.log.1").write_text("1\n2\n3\n")
    path.write_text("4\n[5]\n")
    assert logs.tail(path, 3) == ["3", "4", "[5]"]
    assert logs.tail(path, 0) == []
    assert logs.tail(tmp_path / "none", 3) == []


def test_following_loses_nothing_over_a_rotation(tmp_path: Path):
    path = tmp_path / "server.log"
    logs.note(path, "line 0")
    over = threading.Event()
    seen: list[str] = []

    def read() -> None:
        seen.extend(logs.follow(path, 10, until=over.is_set, poll_s=0.001))

    reader = threading.Thread(target=read)
    reader.start()
    while not seen:
        time.sleep(0.001)
    for number in range(1, 300):
        logs.note(path, f"line {number}")
        if number % 100 == 0:
            logs.rotate(path, max_bytes=1)
    over.set()
    reader.join()
    assert [int(line.rpartition(" ")[2]) for line in seen] == list(range(300))


def test_a_full_disk_does_not_stop_a_note(tmp_path: Path):
    (tmp_path / "server.log").symlink_to("/dev/full")
    logs.note(tmp_path / "server.log", "nobody will read this")


@pytest.mark.parametrize("at_write_s", [0.0, 5.0, None])
def test_times_of_a_record_in_the_file_go_on_while_its_supervisor_lives(tmp_path: Path, at_write_s):
    made = instance(tmp_path)
    record = dict.fromkeys(_ALWAYS) | {"phase_s": at_write_s, "uptime_s": at_write_s}
    me = Identity.of(os.getpid())
    assert me is not None
    write_record(made, record | {"supervisor": me.to_dict()})
    a_minute_ago = time.time() - 60
    os.utime(made.state_path, (a_minute_ago, a_minute_ago))
    fd = try_lock(made.lock_path)
    assert fd is not None
    found = aged_record(made)
    os.close(fd)
    assert found is not None
    for key in ("phase_s", "uptime_s"):
        expected = None if at_write_s is None else pytest.approx(at_write_s + 60, abs=5)
        assert found[key] == expected
    assert (aged_record(made) or {})["phase_s"] == at_write_s, "nobody lives"
