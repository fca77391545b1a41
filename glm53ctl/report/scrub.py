"""What leaves the machine: named fields only, and free text without secrets, names and addresses. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from glm53ctl.redact import redact

MAX_LINE = 2000
_IPV4 = re.compile(r"\b(?!127\.|0\.0\.0\.0\b)(?:\d{1,3}\.){3}\d{1,3}\b")
_MOUNT = re.compile(r"(?<![\w./-])/(?:mnt|media|run/media|srv|data)/[^\s\"':,;)\]]+")
_HOME = re.compile(r"(?<![\w./-])/(?:home|root|Users)(?:/[^/\s\"':,;)\]]+)?(?=[/\s\"':,;)\]]|$)")
_GPU = re.compile(r"\b((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f-]{27}\b")


@dataclass(frozen=True, slots=True)
class Scrubber:
    """`secrets` are known values; `user` and `host` are names of this machine's owner and of itself."""

    secrets: tuple[str, ...] = ()
    home: str = ""
    user: str = ""
    host: str = ""

    def text(self, text: str) -> str:
        """Free text without secrets, home directories, user and host names, mounts and addresses."""
        text = redact(text, secrets=self.secrets)
        if len(self.home) > 1:
            text = text.replace(self.home, "~")
        text = _HOME.sub("~", text)
        text = _MOUNT.sub("<mount>", text)
        text = _IPV4.sub("<address>", text)
        text = _GPU.sub(r"\1…", text)
        for name, mask in ((self.host, "<host>"), (self.user, "<user>")):
            if len(name) > 2 and name != "root":
                text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", mask, text)
        return text

    def lines(self, lines: Iterable[str]) -> str:
        """Log lines; one that is too long to be ours is cut."""
        return "\n".join(self.text(line[:MAX_LINE]) for line in lines)

    def value(self, value: Any) -> Any:
        """A JSON value whose strings are scrubbed."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            found = cast("Mapping[str, Any]", value)
            return {self.text(str(key)): self.value(item) for key, item in found.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in cast("list[Any]", value)]
        return value


def only(body: Mapping[str, Any], allowed: Iterable[str]) -> dict[str, Any]:
    """The allowed fields, "a.b" for a field inside. What is not named does not exist."""
    found: dict[str, Any] = {}
    for path in allowed:
        head, _, rest = path.partition(".")
        if head not in body:
            continue
        inner = body[head]
        if not rest:
            found[head] = inner
        elif isinstance(inner, Mapping):
            part = only(cast("Mapping[str, Any]", inner), [rest])
            found[head] = {**found.get(head, {}), **part}
    return found


def numbers(value: Any) -> Any:
    """Only numbers, flags and nulls of a JSON value, with their names: counters, never content."""
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        kept = {key: numbers(item) for key, item in items if re.fullmatch(r"[a-z0-9_]+", key)}
        return {key: item for key, item in kept.items() if item is not _NOTHING}
    if isinstance(value, list):
        kept_items = [numbers(item) for item in cast("list[Any]", value)[:64]]
        return [item for item in kept_items if item is not _NOTHING]
    return value if value is None or isinstance(value, bool | int | float) else _NOTHING


_NOTHING = object()
