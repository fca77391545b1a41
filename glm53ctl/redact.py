"""Secrets out of text that leaves this machine: logs, crash files, reports."""

from __future__ import annotations

import re

MASK = "[redacted]"
_PATTERNS = (
    re.compile(r"\bhf_[A-Za-z0-9]{8,}"),
    re.compile(r"\bsk-[A-Za-z0-9_-]{4,}"),
    re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/=-]{4,}"),
    re.compile(r"(?i)(?<=[?&]token=)[^&\s\"']+"),
    re.compile(r"(?i)(?<=api_key=)[^\s\"']+"),
    re.compile(r"(?i)(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
)


def redact(text: str, *, secrets: tuple[str, ...] = ()) -> str:
    """Text without tokens that look like secrets, and without the given ones."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, MASK)
    for pattern in _PATTERNS:
        text = pattern.sub(MASK, text)
    return text
