"""A bundle as one Markdown text to paste, and as one archive to attach."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any, cast

from glm53ctl.errors import Glm53Error
from glm53ctl.report.collect import Bundle

_PASTE_LINES = 60


def markdown(bundle: Bundle) -> str:
    """The report to paste into an issue: findings first, long parts folded away."""
    lines = ["## glm53ctl report", ""]
    lines += [f"- **finding**: {text}" for text in bundle.findings] or ["- no finding"]
    lines += [f"- skipped: {text}" for text in bundle.skipped]
    lines += _doctor_lines(bundle)
    for name, text in bundle.parts.items():
        body = text.rstrip("\n").splitlines()
        cut = body[-_PASTE_LINES:] if name.endswith((".log", ".txt")) else body
        fence = "````"
        lines += [
            "",
            f"<details><summary>{name}</summary>",
            "",
            fence,
            *cut,
            fence,
            "",
            "</details>",
        ]
    lines += [
        "",
        "Secrets, home directories, user and host names, mounts and addresses are masked.",
    ]
    return "\n".join(lines) + "\n"


def _doctor_lines(bundle: Bundle) -> list[str]:
    """What doctor did not like, one line each."""
    if "doctor.json" not in bundle.parts:
        return []
    judged = cast("dict[str, Any]", json.loads(bundle.parts["doctor.json"]))
    checks = cast("list[dict[str, Any]]", judged["checks"])
    return [f"- doctor judged this machine for {judged['model']}"] + [
        f"- doctor {item['status']} {item['id']}: {item['observed']}"
        for item in checks
        if item["status"] in {"fail", "warn", "unknown"}
    ]


def write_archive(bundle: Bundle, file: Path) -> None:
    """One tar.gz, readable by its owner alone. Raises Glm53Error when it cannot be written."""
    parts = {"report.md": markdown(bundle), **bundle.parts}
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with (
            os.fdopen(handle, "wb") as stream,
            tarfile.open(fileobj=stream, mode="w:gz") as archive,
        ):
            for name, text in parts.items():
                content = text.encode()
                entry = tarfile.TarInfo(f"{file.name.removesuffix('.tar.gz')}/{name}")
                entry.size, entry.mode = len(content), 0o600
                archive.addfile(entry, io.BytesIO(content))
    except OSError as err:
        raise Glm53Error(
            f"cannot write {file}: {err.strerror}", hint="glm53ctl report --output FILE"
        ) from err
