"""Asking a supervisor over its control socket, and knowing that it runs when the socket is lost.

Changes nothing on disk.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from glm53ctl.errors import NotRunning, Unhealthy
from glm53ctl.supervisor.state import Instance, holder, read_record, short_socket_path

Record = dict[str, Any]
ANSWER_S = 10.0  # a supervisor answers in milliseconds, unless the machine is very busy
_FILE_POLL_S = 0.2


def request(instance: Instance, body: Record) -> Record:
    """One question to the supervisor. Raises NotRunning, or Unhealthy when it does not answer."""
    with _connected(instance) as stream:
        stream.sendall(json.dumps(body).encode() + b"\n")
        with stream.makefile("rb") as lines:
            try:
                line = lines.readline()
            except TimeoutError as err:
                raise Unhealthy(
                    f"the supervisor of {instance.name!r} does not answer",
                    hint=f"glm53ctl down{instance.option} --force",
                ) from err
    if not line:
        raise _not_running(instance)
    return json.loads(line)


def watch(instance: Instance) -> Iterator[Record]:
    """The record now and after each change; the last one has an exit code. Raises NotRunning.

    A supervisor may end before we come to ask; then its last words are in the file.
    """
    record: Record = {"exit_code": None}
    try:
        with _connected(instance) as stream:
            stream.settimeout(None)
            stream.sendall(b'{"verb": "watch"}\n')
            with stream.makefile("rb") as lines:
                for line in lines:
                    record = json.loads(line)
                    yield record
    except NotRunning:
        yield from _watch_file(instance)
        return
    last = read_record(instance)
    if record["exit_code"] is None and last is not None and last["exit_code"] is not None:
        yield last


def _watch_file(instance: Instance) -> Iterator[Record]:
    """The same for an instance whose socket is lost or closed. Raises NotRunning without last words."""
    record = aged_record(instance)
    while record is not None and record["exit_code"] is None and holder(instance):
        yield record
        time.sleep(_FILE_POLL_S)
        record = aged_record(instance)
    if record is None or record["exit_code"] is None:
        raise _not_running(instance)
    yield record


def aged_record(instance: Instance) -> Record | None:
    """The record in the file, its times counted on until now while its supervisor lives."""
    record = read_record(instance)
    if record is None or holder(instance) is None:
        return record
    with suppress(OSError):
        age_s = max(0.0, time.time() - instance.state_path.stat().st_mtime)
        times = {key: record[key] for key in ("uptime_s", "phase_s") if record[key] is not None}
        record |= {key: seconds + age_s for key, seconds in times.items()}
    return record


@contextmanager
def _connected(instance: Instance) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.settimeout(ANSWER_S)
        try:
            with short_socket_path(instance.socket_path) as name:
                stream.connect(name)
        except (FileNotFoundError, ConnectionRefusedError) as err:
            raise _not_running(instance) from err
        try:
            yield stream
        except ConnectionError as err:
            raise _not_running(instance) from err


def _not_running(instance: Instance) -> NotRunning:
    return NotRunning(f"{instance.name!r} is not running", hint=f"glm53ctl up{instance.option}")


def answers(instance: Instance) -> bool:
    """True while a supervisor answers for this instance."""
    try:
        request(instance, {"verb": "status"})
    except NotRunning:
        return False
    return True


def is_running(instance: Instance) -> bool:
    """True while a supervisor answers for this instance, or lives with its socket lost."""
    return answers(instance) or holder(instance) is not None
