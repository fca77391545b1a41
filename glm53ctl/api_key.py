"""The API key's file: found, written from GLM53_API_KEY, or made. The key itself never enters a plan."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from glm53ctl.env import Environ
from glm53ctl.errors import UsageError
from glm53ctl.plan import Plan


def ensure_api_key(plan: Plan, environ: Environ, *, own_folder: Path) -> bool:
    """Make sure that the plan's key file exists, readable by its owner alone.

    Only a file in `own_folder`, the instance's, is written: one that the user named must exist.
    Returns True when a new key was made up, so that the caller can show it once. Raises UsageError
    for a file that is missing or cannot be written.
    """
    if plan.listen.api_key_file is None:
        return False
    file = Path(plan.listen.api_key_file)
    if file.parent != own_folder:
        if not file.exists():
            raise UsageError(f"the API key file {file} does not exist")
        return False
    given = environ.get("GLM53_API_KEY")
    if given is None and file.exists():
        return False
    _write(file, given or secrets.token_urlsafe(32))
    return given is None


def _write(file: Path, key: str) -> None:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), 0o600)  # an older file may have been open to others
            stream.write(key + "\n")
    except OSError as err:
        raise UsageError(f"cannot write the API key file {file}: {err.strerror}") from err
