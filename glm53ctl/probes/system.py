"""The one seam between probes and the machine: files below a root, commands, NVML in a child.

Probes get a `System` and nothing else, so a recorded machine (a directory) stands in for a real one.
Commands never see a shell, a terminal or a locale; each has a deadline and its own process group.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

from glm53ctl.env import Environ
from glm53ctl.errors import UsageError
from glm53ctl.probes.nvml_child import ASKING

MAX_OUTPUT_BYTES = 1 << 20
NVML_DEADLINE_S = 2.0
NVML_WAKING_S = 1.5  # more: without persistence a headless card is initialised at the first call
PACKAGE_ROOT = Path(__file__).resolve().parents[2]  # so that a child finds glm53ctl as we did


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command said. `problem` is set when it did not run to its end: "missing", "timeout"."""

    code: int
    out: str = ""
    err: str = ""
    problem: str | None = None
    stuck_in_kernel: bool = False  # state D at the deadline: not even SIGKILL helps

    @property
    def ok(self) -> bool:
        return self.problem is None and self.code == 0


@dataclass(frozen=True, slots=True)
class DiskSpace:
    free_bytes: int
    total_bytes: int
    free_inodes: int
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class System:
    """This machine. Every method is read-only and returns; none raises for what it finds."""

    environ: Environ = field(default_factory=Environ.current)
    root: Path = Path("/")
    recorded: ClassVar[bool] = False

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str | None:
        """Text of a file, None when it cannot be read."""
        try:
            return self.path(name).read_bytes().decode("utf-8", "replace")
        except OSError:
            return None

    def exists(self, name: str) -> bool:
        return self.path(name).exists()

    def names(self, folder: str) -> tuple[str, ...]:
        """Names in a folder, sorted; empty when there is none."""
        try:
            return tuple(sorted(item.name for item in self.path(folder).iterdir()))
        except OSError:
            return ()

    def resolve(self, name: str) -> str:
        """A path with its symbolic links followed, still as this machine names it."""
        return "/" + os.path.relpath(self.path(name).resolve(), self.root.resolve())

    def run(self, argv: Sequence[str], *, deadline_s: float = 3.0) -> CommandResult:
        """Run a command. Never raises; output is cut at 1 MiB."""
        return run_command(argv, self.environ, deadline_s=deadline_s)

    def nvml(self) -> Mapping[str, Any]:
        """NVML's answers as JSON values, or {"problem": ..., "detail": ...}. See `nvml_child`."""
        result = self._child("nvml", (), {}, NVML_DEADLINE_S, longer_s=NVML_WAKING_S)
        waited_s = NVML_DEADLINE_S + NVML_WAKING_S
        if result.problem == "timeout" and ASKING not in result.err:
            busy = f"the probe did not start in {waited_s:g} s: a busy machine"
            return {"problem": "error", "detail": busy}
        if result.problem == "timeout":
            where = "process stuck in D" if result.stuck_in_kernel else "no answer in time"
            return {"problem": "hung", "detail": where}
        try:
            return cast("Mapping[str, Any]", json.loads(result.out))
        except ValueError:
            lines = result.err.strip().splitlines() or [f"exit code {result.code}"]
            return {"problem": "error", "detail": lines[-1]}

    def measure(
        self, what: str, *arguments: str, deadline_s: float, gpu: str | None = None
    ) -> Mapping[str, Any]:
        """A measuring child's JSON answer; "problem" and "code" when it gave none.

        `what` is h2d, ram, tier, disk or cpuinfo; `gpu` is the only card the child may see.
        """
        extra = {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}
        result = self._child(what, arguments, extra, deadline_s)
        try:
            return cast("Mapping[str, Any]", json.loads(result.out))
        except ValueError:
            lines = result.err.strip().splitlines() or [f"exit code {result.code}"]
            return {"problem": result.problem or lines[-1], "code": result.code}

    def _child(
        self,
        what: str,
        arguments: Sequence[str],
        extra: Mapping[str, str],
        deadline_s: float,
        *,
        longer_s: float = 0.0,
    ) -> CommandResult:
        """Run one of our children. -P: a json.py in the user's folder must not become theirs."""
        argv = [sys.executable, "-P", "-m", f"glm53ctl.probes.{what}_child", *arguments]
        values = {**self.environ.values, **extra}
        values["PYTHONPATH"] = os.pathsep.join(
            path for path in (str(PACKAGE_ROOT), values.get("PYTHONPATH")) if path
        )
        return run_command(argv, Environ(values), deadline_s=deadline_s, longer_s=longer_s)

    def disk_space(self, folder: Path) -> DiskSpace | None:
        """Space of the file system that holds a folder or its nearest existing ancestor."""
        existing = next((item for item in (folder, *folder.parents) if item.exists()), None)
        try:
            found = os.statvfs(existing) if existing else None
        except OSError:
            return None
        if found is None:
            return None
        return DiskSpace(
            free_bytes=found.f_bavail * found.f_frsize,
            total_bytes=found.f_blocks * found.f_frsize,
            free_inodes=found.f_favail,
            read_only=bool(found.f_flag & os.ST_RDONLY),
        )

    def bind_problem(self, host: str, port: int) -> str | None:
        """Why (host, port) cannot be listened on: "in use", "not local", "permission", or None."""
        return bind_problem(host, port)

    def port_owner(self, port: int) -> str | None:
        """Who listens on a port: address, pid and command, as far as we may see them."""
        from glm53ctl.ports import owner_of

        owner = owner_of(port)
        return str(owner) if owner else None

    def can_import(self, module: str) -> bool:
        """Whether a module is installed, without importing it."""
        from importlib.util import find_spec

        try:
            return find_spec(module) is not None
        except (ImportError, ValueError):
            return False


@dataclass(frozen=True, slots=True)
class RecordedSystem(System):
    """A machine recorded in a directory: its files, nvml.json, commands.json and machine.json.

    commands.json maps an argv joined by blanks to {"code", "out", "err", "problem"}; a command that
    is not in it is missing. machine.json holds "modules", "disk" (by path), "bind" (by host:port),
    "owners" (by port) and "measured" (by child).
    """

    recorded: ClassVar[bool] = True

    def _json(self, name: str) -> dict[str, Any]:
        text = self.read(name)
        return cast("dict[str, Any]", json.loads(text)) if text else {}

    def run(self, argv: Sequence[str], *, deadline_s: float = 3.0) -> CommandResult:
        del deadline_s
        answer = self._json("commands.json").get(" ".join(argv))
        if answer is None:
            return CommandResult(127, problem="missing")
        return CommandResult(**answer)

    def nvml(self) -> Mapping[str, Any]:
        return self._json("nvml.json") or {"problem": "no_library", "detail": "not recorded"}

    def measure(
        self, what: str, *arguments: str, deadline_s: float, gpu: str | None = None
    ) -> Mapping[str, Any]:
        del arguments, deadline_s, gpu
        found = self._json("machine.json").get("measured", {})
        return found.get(what, {"problem": "not recorded"})

    def disk_space(self, folder: Path) -> DiskSpace | None:
        disks = self._json("machine.json").get("disk", {})
        for item in (folder, *folder.parents):
            if str(item) in disks:
                return DiskSpace(**disks[str(item)])
        return None

    def bind_problem(self, host: str, port: int) -> str | None:
        return self._json("machine.json").get("bind", {}).get(f"{host}:{port}")

    def port_owner(self, port: int) -> str | None:
        return self._json("machine.json").get("owners", {}).get(str(port))

    def can_import(self, module: str) -> bool:
        return module in self._json("machine.json").get("modules", [])


def this_system(environ: Environ) -> System:
    """This machine, or the one recorded in GLM53_FAKE_ROOT."""
    recorded = environ.get("GLM53_FAKE_ROOT")
    if recorded is None:
        return System(environ)
    if not Path(recorded).is_dir():
        raise UsageError(f"GLM53_FAKE_ROOT names {recorded}, which is not a directory")
    return RecordedSystem(environ, Path(recorded))


def run_command(
    argv: Sequence[str], environ: Environ, *, deadline_s: float, longer_s: float = 0.0
) -> CommandResult:
    """Run argv in its own group with a fixed locale; kill the group at the deadline.

    One that is not stuck in the kernel by then gets `longer_s` more.
    """
    env = {**environ.values, "LC_ALL": "C", "LANGUAGE": "", "PYTHONIOENCODING": "utf-8"}
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )
    except (FileNotFoundError, NotADirectoryError):
        return CommandResult(127, problem="missing")
    except OSError as err:
        return CommandResult(126, problem=err.strerror or "cannot run")
    for limit_s in (deadline_s, longer_s):
        try:
            out, err = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            if process_state(child.pid) == "D":
                break
        else:
            return CommandResult(child.returncode, _text(out), _text(err))
    return _abandon(child)


def _abandon(child: subprocess.Popen[bytes]) -> CommandResult:
    """Kill a child that missed its deadline, and give up on it if the kernel holds it."""
    os.killpg(child.pid, signal.SIGKILL)
    err = b""
    try:
        _, err = child.communicate(timeout=0.5)
        stuck = False
    except subprocess.TimeoutExpired:
        stuck = process_state(child.pid) == "D"
        for stream in (child.stdout, child.stderr):
            if stream:
                stream.close()
        child.returncode = -9  # so that the interpreter does not wait for it at exit
    return CommandResult(124, err=_text(err), problem="timeout", stuck_in_kernel=stuck)


def process_state(pid: int) -> str | None:
    """The state letter of /proc/<pid>/stat: R, S, D, Z, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def bind_problem(host: str, port: int) -> str | None:
    """Try to bind exactly as asked.

    SO_REUSEADDR, as servers set it: on Linux a listener still refuses, closed connections do not.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except PermissionError:
        return "permission"
    except OverflowError:
        return "not a port"
    except OSError as err:
        if isinstance(err, socket.gaierror) or err.errno == errno.EADDRNOTAVAIL:
            return "not local"
        return "in use" if err.errno == errno.EADDRINUSE else (err.strerror or "cannot bind")
    return None


def _text(raw: bytes) -> str:
    return raw[:MAX_OUTPUT_BYTES].decode("utf-8", "replace")
