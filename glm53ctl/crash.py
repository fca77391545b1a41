"""A bug of ours: one line for the user, the traceback in a private file, without secrets."""

from __future__ import annotations

import errno
import os
import time
import traceback
from pathlib import Path

from glm53ctl.env import Environ
from glm53ctl.errors import Glm53Error
from glm53ctl.paths import user_paths
from glm53ctl.redact import redact

_IN_THE_WAY = {errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY}
_OF_THE_MACHINE = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT),
    *(errno.ENAMETOOLONG, errno.ELOOP, *_IN_THE_WAY),
}


def bug(err: Exception) -> Glm53Error:
    """The error to show for an unexpected exception; the traceback goes to state/crash/.

    A file or folder that the system refuses us is no bug: it is said with its name.
    """
    if isinstance(err, OSError) and err.errno in _OF_THE_MACHINE:
        what = f"cannot use {err.filename}" if err.filename else "the system refuses"
        way_out = "move it away" if err.errno in _IN_THE_WAY else "make it writable"
        return Glm53Error(
            f"{what}: {err.strerror}",
            hint=f"{way_out}, or keep files elsewhere: `glm53ctl help files` shows where",
        )
    environ = Environ.current()
    text = "".join(traceback.format_exception(err))
    secrets = tuple(
        value for name in ("GLM53_API_KEY", "HF_TOKEN") if (value := environ.get(name)) is not None
    )
    file = _write(user_paths(environ).state_dir / "crash", redact(text, secrets=secrets))
    where = f"details are in {file}\n" if file else "see it with --debug\n"
    return Glm53Error(
        f"bug in glm53ctl: {type(err).__name__}",
        hint=f"{where}please report it: glm53ctl report",
        error_id="BUG-001",
    )


def _write(folder: Path, text: str) -> Path | None:
    """Write a crash file readable by its owner alone; None when even that is impossible."""
    file = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError:
        return None
    return file
