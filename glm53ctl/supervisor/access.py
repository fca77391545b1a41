"""How the control plane authenticates to the server it started."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from glm53ctl.plan import Plan


def auth_headers(plan: Plan) -> dict[str, str]:
    """The API key as a header, read anew each time: the file may be replaced while we run."""
    if plan.listen.api_key_file is None:
        return {}
    with suppress(OSError):
        keys = Path(plan.listen.api_key_file).read_text(encoding="utf-8").split()
        return {"Authorization": f"Bearer {keys[0]}"} if keys else {}
    return {}
