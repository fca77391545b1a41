"""Addresses of other people's memory: torch tensors, numpy arrays, or plain integers.

Knows neither library: it asks the object. A wrong dtype, size or layout is refused here, before C sees
a pointer; an integer is trusted (the caller keeps that memory alive and large enough).
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

from .errors import BadArgument

Dtype = Literal["float32", "int32", "float16", "int16"]
Buffer: TypeAlias = Any
"""An address, a torch CPU tensor or a numpy array, contiguous."""

_TYPESTR: dict[Dtype, str] = {"float32": "<f4", "int32": "<i4", "float16": "<f2", "int16": "<i2"}


def counted(name: str, count: int) -> int:
    """`count` as it is. Raises BadArgument for one that ctypes would wrap around, silently."""
    if not 0 <= count < 2**31:
        raise BadArgument(f"{name} is {count}")
    return count


def address(buffer: Buffer, name: str, dtype: Dtype, count: int, *, write: bool = False) -> int:
    """Address of `count` contiguous elements of `dtype`. Raises BadArgument naming the buffer."""
    if isinstance(buffer, int):
        return buffer
    if hasattr(buffer, "data_ptr"):
        return _torch_address(buffer, name, dtype, count)
    interface: dict[str, Any] | None = getattr(buffer, "__array_interface__", None)
    if interface is None:
        raise BadArgument(
            f"{name} is a {type(buffer).__name__}, not an address, torch tensor or numpy array"
        )
    pointer, read_only = interface["data"]
    _expect(name, "dtype", interface["typestr"], _TYPESTR[dtype])
    _expect(name, "number of elements", math.prod(interface["shape"]), count)
    if interface.get("strides") is not None:
        raise BadArgument(f"{name} is not contiguous")
    if write and read_only:
        raise BadArgument(f"{name} is read-only")
    return pointer


def _torch_address(tensor: Any, name: str, dtype: Dtype, count: int) -> int:
    _expect(name, "device", tensor.device.type, "cpu")
    _expect(name, "dtype", str(tensor.dtype), f"torch.{dtype}")
    _expect(name, "number of elements", tensor.numel(), count)
    if not tensor.is_contiguous():
        raise BadArgument(f"{name} is not contiguous")
    return tensor.data_ptr()


def _expect(name: str, what: str, got: object, want: object) -> None:
    if got != want:
        raise BadArgument(f"{name}: {what} is {got}, expected {want}")
