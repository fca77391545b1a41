"""click's complaints about a command line as our UsageError: what is wrong, and what was meant.

One place for all verbs. click's objects are looked at through typer, which may carry its own copy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glm53ctl import wanted
from glm53ctl.env import nearest
from glm53ctl.errors import UsageError

# What other tools call a verb of ours; the first that the group at hand has is meant.
_ELSEWHERE = {
    "stop": ("down",),
    "start": ("up",),
    "run": ("up",),
    "kill": ("down",),
    "ps": ("status",),
    "ls": ("list", "status"),
    "get": ("show", "pull"),
    "add": ("set", "import"),
    "download": ("pull",),
    "delete": ("unset", "rm"),
    "remove": ("unset", "rm"),
    "rm": ("unset",),
    "edit": ("set",),
}


def usage_error(err: Any, root: Any, arguments: Sequence[str]) -> UsageError:
    """Our error for click's. `root` is the command that `arguments` were given to."""
    context = getattr(err, "ctx", None)
    command, path = (context.command, context.command_path) if context else _asked(root, arguments)
    message, meant = _told(err, command, path)
    hint = f"did you mean `{meant}`?" if meant else f"see `{path} --help`"
    return UsageError(message, hint=hint)


def _asked(root: Any, arguments: Sequence[str]) -> tuple[Any, str]:
    """The command that a command line asks for, and how it is called."""
    command, path = root, "glm53ctl"
    for word in arguments:
        found = getattr(command, "commands", {}).get(word)
        if found is None and not word.startswith("-"):
            break
        if found is not None:
            command, path = found, f"{path} {word}"
    return command, path


def _told(err: Any, command: Any, path: str) -> tuple[str, str | None]:
    """The message in our words, and what was probably meant."""
    text = str(err.format_message())
    quoted = text.partition("'")[2].partition("'")[0]
    if text.startswith("No such command"):
        return f"no such command {quoted!r}", command_meant(quoted, command.commands)
    if text.startswith("No such option"):
        known = {name for item in command.params for name in (*item.opts, *item.secondary_opts)}
        known |= {"--help"}
        return f"no such option: {err.option_name}", nearest(str(err.option_name), known)
    if text.startswith("Missing") and "Choose from" in text:
        _, _, offered = text.partition("Choose from:")
        words = wanted.either(re.findall(r"[^\s,]+", offered))
        return f"missing {_name(err.param)}: {words}", None
    if "unexpected extra argument" in text:
        return _extra(text, command, path)
    if getattr(err, "param", None) is not None and err.__cause__ is not None:
        return _bad_value(err)
    return text[:1].lower() + text[1:].rstrip("."), None


def command_meant(word: str, known: Any) -> str | None:
    """The command of a group that a word most likely stands for."""
    elsewhere = (name for name in _ELSEWHERE.get(word, ()) if name in known)
    return next(elsewhere, None) or nearest(word, set(known))


def _extra(text: str, command: Any, path: str) -> tuple[str, str | None]:
    words = text.rpartition("(")[2].rstrip(".)")
    flags = {name for item in command.params for name in item.opts}
    first = words.partition(" ")[0]
    told = f"`{path}` takes no {words!r}"
    if "--model" in flags:
        is_model = first in {"tiny", "glm-5.3-flash"} or Path(first).is_dir()
        return told, f"--model {first}" if is_model else None
    if first == "tiny":
        return f"{told}: tiny comes with the package", "glm53ctl up --model tiny"
    return told, f"--instance {first}" if "--instance" in flags else None


def _bad_value(err: Any) -> tuple[str, str | None]:
    """Of a value that its type refuses; the cause is pydantic's."""
    problem = err.__cause__.errors()[0]
    value = str(problem["input"])
    known = wanted.choices(str(problem["msg"]))
    return f"{_name(err.param)} {value!r}: {wanted.must(problem)}", nearest(value, known)


def _name(param: Any) -> str:
    """A parameter as its help shows it."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name).upper()
    return max(param.opts, key=len)
