"""Everything that can go wrong with the native libraries, as one small tree.

KernelError
  KernelBuildFailed     no compiler, or it refused the sources
  LibraryMissing        the shared library is not there, or the dynamic linker refuses it
  StaleLibrary          a checkout whose sources differ from the built library
  AbiMismatch           library and Python disagree about a version or a struct
  BadArgument           a call was refused: wrong size, null or misaligned pointer, id out of range
  Unsupported           this CPU cannot do what was asked
  NativeFailure         out of memory or an internal fault in the library
"""

from __future__ import annotations


class KernelError(Exception):
    """Base of this package's errors. `hint`, when there is one, is something the reader can do."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} (hint: {hint})")
        self.hint = hint


class KernelBuildFailed(KernelError):
    """The compiler is missing or refused the sources."""


class LibraryMissing(KernelError):
    """The shared library is absent or cannot be loaded."""


class StaleLibrary(KernelError):
    """The library was built from other sources than the ones beside it."""


class AbiMismatch(KernelError):
    """Library and bindings disagree about the ABI version or the size of a struct."""


class BadArgument(KernelError):
    """A call was refused before anything was computed or written."""


class Unsupported(KernelError):
    """The CPU lacks the instruction set that was asked for."""


class NativeFailure(KernelError):
    """The library ran out of memory or failed inside."""
