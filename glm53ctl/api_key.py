"""The API key's file: found, written from GLM53_API_KEY, or made. The key itself never enters a plan."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from glm53ctl.env import Environ
from glm53ctl.errors import UsageError
from glm53ctl.plan import Plan


def ensure_api_key(plan: Plan, environ: Environ) -> bool:
    """Make sure that the plan's key file exists, readable by its owner alone.

    Returns True when a new key was generated, so that the caller can show it once. Raises UsageError
    when the file is missing although the user named it, or cannot be written.
    """
    if plan.listen.api_key_file is None:
        return False
    file = Path(plan.listen.api_key_file)
    given = environ.get("GLM53_API_KEY")
    if environ.get("GLM53_API_KEY_FILE") and not file.exists():
        raise UsageError(f"GLM53_API_KEY_FILE names {file}, which does not exist")
    if given is None and file.exists():
        return False
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), 0o600)
            stream.write((given or secrets.token_urlsafe(32)) + "\n")
    except OSError as err:
        raise UsageError(f"cannot write the API key file {file}: {err.strerror}") from err
    return given is None
