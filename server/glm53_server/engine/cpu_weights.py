"""Tensors of an EXL3 checkpoint as torch tensors, and the names transformers knows them by.

Files are mapped, so bytes that stay quantised (the routed experts) are never copied: every tensor
that shares memory with a map keeps it alive. Knows nothing of models or engines.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from glm53_kernels import CpuKernels, Linear
from glm53ctl.checkpoint import TEXT_PREFIX, Checkpoint
from glm53ctl.errors import BadModel

_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "I16": torch.int16,
    "I32": torch.int32,
}
# transformers' module names on the left; what a checkpoint calls them on the right.
_RENAMES = (
    (re.compile(r"\.forget_gate\."), "."),
    (re.compile(r"\.(attn|ffn)_hc\."), r".hc_\1_"),
)
_QKV = re.compile(r"(.*\.self_attn\.)([qkv])_proj")


class Weights:
    """Reads tensors by name. `read_bytes` counts what has been read so far, for progress."""

    def __init__(self, checkpoint: Checkpoint, kernels: CpuKernels) -> None:
        self.checkpoint = checkpoint
        self._kernels = kernels
        self.read_bytes = 0
        self._maps: dict[Path, Tensor] = {}
        self._latest: tuple[str, Tensor] | None = None

    def raw(self, name: str) -> Tensor:
        """The stored tensor: its dtype, its shape, mapped memory (a copy only where misaligned)."""
        entry = self.checkpoint.tensor(name)
        dtype = _DTYPES.get(entry.dtype)
        if dtype is None:
            raise BadModel(
                f"{entry.file}: {name} is {entry.dtype}, which the CPU engine cannot use"
            )
        if entry.file not in self._maps:
            size_bytes = entry.file.stat().st_size
            self._maps[entry.file] = torch.from_file(
                str(entry.file), shared=False, size=size_bytes, dtype=torch.uint8
            )
        data = self._maps[entry.file][entry.offset : entry.offset + entry.nbytes]
        if entry.offset % dtype.itemsize:
            data = data.clone()
        self.read_bytes += entry.nbytes
        return data.view(dtype).view(entry.shape)

    def dense(self, name: str) -> Tensor:
        """A float32 copy of a stored tensor."""
        return self.raw(name).to(torch.float32, copy=True)

    def linear(self, module: str) -> Tensor:
        """The float32 [out, in] weight of a linear, dequantised if it is stored as a trellis."""
        if f"{module}.trellis" not in self.checkpoint.tensors:
            return self.dense(f"{module}.weight")
        if self._latest is None or self._latest[0] != module:  # q, k and v come from one tensor
            stored = self.exl3(module)
            weight = torch.empty(stored.out_features, stored.in_features)
            self._kernels.linear_dequant(stored, weight)
            self._latest = (module, weight)
        return self._latest[1]

    def exl3(self, module: str) -> Linear:
        """A quantised linear as it is stored; it keeps the memory it refers to alive."""
        file = self.checkpoint.tensor(f"{module}.trellis").file
        if f"{module}.mul1" not in self.checkpoint.tensors:
            raise BadModel(f"{file}: {module} does not use the mul1 codebook")
        self.read_bytes += self.checkpoint.tensor(f"{module}.mul1").nbytes
        trellis, suh, svh = (self.raw(f"{module}.{part}") for part in ("trellis", "suh", "svh"))
        tiles = (suh.numel() // 16, svh.numel() // 16)
        if trellis.dim() != 3 or trellis.shape[:2] != tiles or trellis.shape[2] % 16:
            raise BadModel(
                f"{file}: {module}.trellis has shape {tuple(trellis.shape)}, its scales ask for "
                f"{tiles} tiles of 16 values per bit"
            )
        bits = trellis.shape[2] // 16
        return Linear(suh.numel(), svh.numel(), bits, trellis, suh, svh)


def text_tensor(weights: Weights, target: str) -> Tensor:
    """The float32 tensor for one state-dict key of transformers' Glm5NextTextModel.

    Raises BadModel when the checkpoint lacks it.
    """
    name = TEXT_PREFIX + target
    for pattern, replacement in _RENAMES:
        name = pattern.sub(replacement, name)
    module, _, leaf = name.rpartition(".")
    if leaf != "weight":
        return weights.dense(name)
    if (fused := _QKV.fullmatch(module)) and f"{module}.trellis" not in weights.checkpoint.tensors:
        return weights.linear(f"{fused[1]}qkv_proj").chunk(3)["qkv".index(fused[2])]
    return weights.linear(module)
