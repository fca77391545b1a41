"""Find a native library, prove that it is the one these bindings were made for, and bind its functions.

The only translator of dynamic-linker errors and of native status codes. Everything it refuses is a
KernelError that says what to run.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from . import _abi
from .errors import (
    AbiMismatch,
    BadArgument,
    KernelError,
    LibraryMissing,
    NativeFailure,
    StaleLibrary,
    Unsupported,
)
from .sources import CSRC, LIB, Target, have_sources, is_stale

_REBUILD = "run `make kernels`"
_COMMON = ("glm53_abi_version", "glm53_struct_size", "glm53_build_id", "glm53_last_error")
_STATUS: dict[int, type[KernelError]] = {
    _abi.BAD_ARGUMENT: BadArgument,
    _abi.UNSUPPORTED: Unsupported,
}


class Library:
    """One loaded library. `call` runs a function and raises what it refused."""

    def __init__(self, handle: ctypes.CDLL, path: Path) -> None:
        self._handle = handle
        self.path = path

    @property
    def build_id(self) -> str:
        """Hash of the sources this library was built from."""
        return self._handle.glm53_build_id().decode().removeprefix("glm53-source:")

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._handle, name)(*arguments)
        if status != _abi.OK:
            message = self._handle.glm53_last_error().decode(errors="replace")
            raise _STATUS.get(status, NativeFailure)(f"{name}: {message}")


def load(target: Target, path: Path | None = None) -> Library:
    """Load a target's library, from `path` or from where the build puts it.

    Raises LibraryMissing, StaleLibrary or AbiMismatch. In a checkout the sources beside the package
    must be the ones the library was built from; an explicit `path` is taken as it is.
    """
    where = path or LIB / target.library
    if not where.is_file():
        raise LibraryMissing(f"{where} is not there", hint=_REBUILD)
    if path is None and have_sources() and is_stale(target):
        raise StaleLibrary(f"{where} was not built from the sources in {CSRC}", hint=_REBUILD)
    try:
        handle = ctypes.CDLL(str(where))
    except OSError as refused:
        raise LibraryMissing(f"{where} cannot be loaded: {refused}", hint=_REBUILD) from refused
    _bind(handle, target, where)
    _check_abi(handle, where)
    return Library(handle, where)


def _bind(handle: ctypes.CDLL, target: Target, where: Path) -> None:
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        if name not in _COMMON and not name.startswith(f"glm53_{target.name}_"):
            continue
        try:
            function = getattr(handle, name)
        except AttributeError as missing:
            raise AbiMismatch(f"{where} has no function {name}", hint=_REBUILD) from missing
        function.restype, function.argtypes = result, arguments


def _check_abi(handle: ctypes.CDLL, where: Path) -> None:
    version = handle.glm53_abi_version()
    if version != _abi.ABI_VERSION:
        raise AbiMismatch(
            f"{where} speaks ABI {version}, the bindings {_abi.ABI_VERSION}", hint=_REBUILD
        )
    for name, struct in _abi.STRUCTS.items():
        theirs, ours = handle.glm53_struct_size(name.encode()), ctypes.sizeof(struct)
        if theirs != ours:
            raise AbiMismatch(
                f"{where}: {name} has {theirs} bytes there, {ours} here", hint=_REBUILD
            )
