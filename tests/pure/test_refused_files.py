"""A file that the system refuses is an error about that file; every other surprise is our bug."""

from __future__ import annotations

import errno
import os

import pytest

from glm53ctl import crash


@pytest.mark.parametrize(
    "number",
    [
        errno.EACCES,
        errno.EROFS,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.ENAMETOOLONG,
        errno.EISDIR,
        errno.EEXIST,
        errno.ENOTEMPTY,
    ],
)
def test_a_refused_file_is_named_and_no_bug(number: int):
    error = crash.bug(OSError(number, os.strerror(number), "/state/lock"))
    assert error.message == f"cannot use /state/lock: {os.strerror(number)}"
    assert error.error_id != "BUG-001"
    nameless = crash.bug(OSError(number, os.strerror(number)))
    assert os.strerror(number) in nameless.message


def test_other_errors_of_the_system_stay_bugs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    error = crash.bug(OSError(errno.EBADF, os.strerror(errno.EBADF)))
    assert error.error_id == "BUG-001"
    assert list((tmp_path / "glm53" / "crash").iterdir())
