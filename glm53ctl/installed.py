"""The installation that `scripts/install.sh` made: which environment its link leads to, and changing that.

An upgrade is a second environment beside the first, tried before the link leads to it. Nothing that
runs is touched: a server keeps the environment that it was started from.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from glm53ctl.env import Environ
from glm53ctl.errors import Glm53Error, StartFailed, UsageError
from glm53ctl.probes.system import System

_STAMP = re.compile(r"-\d{8}T\d{6}$")
_REQUIREMENT = re.compile(
    r"\s*(?P<name>[A-Za-z0-9][\w.-]*)\s*(?:\[(?P<extras>[^\]]*)\])?\s*(?P<rest>|[@=<>!~;(].*)"
)
_PROGRAM = Path("bin/glm53ctl")
_TRY_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Installation:
    """`link` is the user's command, `current` the environment it leads to."""

    link: Path
    current: Path

    @property
    def _base(self) -> str:
        return _STAMP.sub("", self.current.name)

    @property
    def previous_link(self) -> Path:
        return self.current.with_name(f"{self._base}-previous")

    @property
    def previous(self) -> Path | None:
        """The environment that a rollback goes back to."""
        found = self.previous_link.resolve()
        return found if (found / _PROGRAM).exists() and found != self.current else None

    def beside(self, stamp: str) -> Path:
        """Where the next environment goes; `stamp` is like 20261129T214500."""
        return self.current.with_name(f"{self._base}-{stamp}")

    def environments(self) -> list[Path]:
        """All environments of this installation, the first one included."""
        found = [self.current.with_name(self._base)]
        found += self.current.parent.glob(f"{self._base}-*")
        return sorted(
            item
            for item in found
            if item.is_dir()
            and not item.is_symlink()
            and (item.name == self._base or _STAMP.search(item.name))
        )


def find(environ: Environ, prefix: Path) -> Installation:
    """The user's installation. Raises UsageError when the program in `prefix` is not a part of it."""
    link = Path(environ.get("HOME") or "/") / ".local" / _PROGRAM
    target = link.resolve()
    if link.is_symlink() and target.exists() and target.parent.parent == prefix.resolve():
        return Installation(link, target.parent.parent)
    raise UsageError(
        f"this glm53ctl, in {prefix}, was not installed by scripts/install.sh",
        hint="in a checkout: git pull && make setup (back: git checkout)\n"
        "a container: start another image, best by digest",
    )


def source_of(given: str | None) -> str:
    """What to install: as given, or the checkout this installation came from. Raises UsageError."""
    if given is not None:
        return str(Path(given).resolve()) if Path(given).exists() else given
    told = metadata.distribution("glm53ctl").read_text("direct_url.json")
    if told is not None:
        url = urlsplit(str(json.loads(told)["url"]))
        if url.scheme == "file" and Path(unquote(url.path)).is_dir():
            return unquote(url.path)
    raise UsageError(
        "say what to install: a wheel, a checkout, or a requirement for pip",
        hint="glm53ctl upgrade glm53ctl-0.2.0-py3-none-linux_x86_64.whl",
    )


def with_extras(source: str, names: str) -> str:
    """A requirement for pip with extras, which belong behind the name: before versions and URLs."""
    if not names or Path(source).exists():
        return f"{source}[{names}]" if names else source
    if "://" in source and "@" not in source.partition("://")[0]:
        return f"glm53ctl[{names}] @ {source}"
    if (found := _REQUIREMENT.fullmatch(source)) is None:
        return f"{source}[{names}]"
    wanted = [item.strip() for item in (found["extras"] or "").split(",")] + names.split(",")
    unique = ",".join(dict.fromkeys(filter(None, wanted)))
    rest = found["rest"].strip()
    return f"{found['name']}[{unique}]{' ' if rest[:1] in {'@', ';'} else ''}{rest}"


def extras(system: System) -> str:
    """The engines this environment has, as extras for pip: "cuda,cpu", "cpu" or ""."""
    if not (system.can_import("torch") and system.can_import("transformers")):
        return "cuda" if system.can_import("exllamav3") else ""
    return "cuda,cpu" if system.can_import("exllamav3") else "cpu"


def stage(folder: Path, requirement: str) -> None:
    """Make an environment with a requirement. Raises Glm53Error, leaving nothing, when that fails."""
    python = folder / "bin/python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([*pip, requirement])
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def try_out(folder: Path, environ: Environ, *, serve: bool) -> str:
    """Run the program of an environment, with `serve` also a server of the bundled model; its version.

    State goes into a folder that is removed; no GPU is touched. Raises StartFailed with its last lines.
    """
    program = str(folder / _PROGRAM)
    with tempfile.TemporaryDirectory(prefix="glm53-try-") as root:
        kept = {k: v for k, v in environ.values.items() if not k.startswith("GLM53_")}
        env = Environ(
            {**kept, "GLM53_ROOT": root, "XDG_CONFIG_HOME": root, "XDG_RUNTIME_DIR": root}
        )
        version = _tried([program, "--version"], env)
        if serve:
            _serve_once(program, env)
    return version.strip()


def _serve_once(program: str, environ: Environ) -> None:
    """Start and stop a server of the bundled model. Raises StartFailed; of two failures it tells both."""
    start = ("up", "--model", "tiny", "--mode", "cpu", "--port", str(_free_port()), "--quiet")
    failed = None
    try:
        _tried([program, *start], environ)
    except StartFailed as err:
        failed = err
    try:
        _tried([program, "down", "--drain", "0"], environ)
    except StartFailed as err:
        message = f"{failed.message}\n{err.message}" if failed else err.message
        raise StartFailed(message, hint=err.hint) from err
    if failed:
        raise failed


def switch(found: Installation, folder: Path) -> Installation:
    """Let the link lead to another environment, and remember this one as the previous. At once or not."""
    _point(found.previous_link, found.current)
    _point(found.link, folder / _PROGRAM)
    return Installation(found.link, folder)


def remove_unused(found: Installation) -> list[Path]:
    """Delete environments that are neither current nor previous and that no process runs from.

    One that the disk keeps stays for the next time: the switch is done.
    """
    keep = {found.current, found.previous}
    gone = [item for item in found.environments() if item not in keep and not _in_use(item)]
    for item in gone:
        shutil.rmtree(item, ignore_errors=True)
    return [item for item in gone if not item.exists()]


def _in_use(folder: Path) -> bool:
    """Whether a process runs from an environment, by whatever path its command line has."""
    import psutil

    real = os.path.realpath(folder)
    for process in psutil.process_iter(["cmdline", "cwd", "exe"]):
        info = process.info
        words = [word for word in info["cmdline"] or () if "/" in word]
        for word in (*words, info["exe"] or ""):
            place = Path(info["cwd"] or "/", word)
            # Its python is a link to that of the system: only the folder is resolved.
            if real in (os.path.realpath(item) for item in place.parents):
                return True
    return False


def _point(link: Path, target: Path) -> None:
    new = link.with_name(f".{link.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(link)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _tried(argv: Sequence[str], environ: Environ) -> str:
    what = f"`{' '.join(argv[1:])}` of the new version"
    hint = "nothing was changed: the version you have goes on"
    try:
        done = _finished(argv, environ)
    except OSError as err:
        raise StartFailed(f"{what} cannot be run: {err}", hint=hint) from err
    except subprocess.TimeoutExpired as err:
        raise StartFailed(f"{what} has not ended after {err.timeout:.0f} s", hint=hint) from err
    if done.returncode != 0:
        raise StartFailed(f"{what} ended with {done.returncode}:\n{_last(done.stderr)}", hint=hint)
    return done.stdout


def _finished(argv: Sequence[str], environ: Environ) -> subprocess.CompletedProcess[str]:
    """Run a program to its end. What it starts may keep its output open: that goes to files."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = subprocess.run(
            argv, env=dict(environ.values), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            timeout=_TRY_LIMIT_S, check=False,
        ).returncode  # fmt: skip
        texts: list[str] = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    return subprocess.CompletedProcess(argv, code, *texts)


def _run(argv: Sequence[str]) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    except OSError as err:
        raise Glm53Error(f"cannot run {argv[0]}: {err}", hint="nothing was changed") from err
    if done.returncode != 0:
        raise Glm53Error(
            f"`{' '.join(argv)}` failed:\n{_last(done.stderr)}", hint="nothing was changed"
        )


def _last(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.strip().splitlines()[-10:])
