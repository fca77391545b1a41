"""EXL3 in numpy and float64: slow, obvious, written from the format and from nothing else.

The native kernels are tested against this; no shipped code imports it.

A linear is trellis int16 [in/16, out/16, 16*bits], suh float16 [in], svh float16 [out]:
    W = diag(suh) * H * What * H * diag(svh),  y = x @ W
where What are the decoded trellis values and H is block-diagonal with 128x128 Sylvester Hadamard
matrices divided by sqrt(128).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MUL1 = 0x83DCD12D
STEP = 0.00676727294921875  # fp16 0x1EEE
OFFSET = -10.3828125  # fp16 0xC931


class Linear(NamedTuple):
    trellis: NDArray[np.int16]
    suh: NDArray[np.float16]
    svh: NDArray[np.float16]

    @property
    def bits(self) -> int:
        return self.trellis.shape[-1] // 16

    @property
    def in_features(self) -> int:
        return 16 * self.trellis.shape[0]

    @property
    def out_features(self) -> int:
        return 16 * self.trellis.shape[1]


class Expert(NamedTuple):
    gate: Linear
    up: Linear
    down: Linear


def codebook(state: NDArray[np.uint32]) -> NDArray[np.float16]:
    """The fp16 value of each 16-bit state: one rounding of an exactly computed number."""
    product = (state.astype(np.uint64) * MUL1) & 0xFFFFFFFF
    byte_sum = sum((product >> shift) & 0xFF for shift in (0, 8, 16, 24))
    return ((1024 + byte_sum.astype(np.float64)) * STEP + OFFSET).astype(np.float16)


def states(trellis: NDArray[np.int16]) -> NDArray[np.uint32]:
    """uint32 [..., 256]: the 16-bit window of each symbol of each tile of int16 [..., 16*bits]."""
    bits = trellis.shape[-1] // 16
    words = np.ascontiguousarray(trellis).view("<u4")
    stream = (words[..., None] >> np.arange(31, -1, -1, dtype=np.uint32)) & 1
    stream = stream.reshape(*words.shape[:-1], 256 * bits)
    ends = (np.arange(256) + 1) * bits
    window = (ends[:, None] - 16 + np.arange(16)) % (256 * bits)
    return (stream[..., window] << np.arange(15, -1, -1, dtype=np.uint32)).sum(-1, dtype=np.uint32)


def decode(trellis: NDArray[np.int16]) -> Array:
    """What: float64 [in, out], the codebook values in their places."""
    in_tiles, out_tiles, _ = trellis.shape
    values = codebook(states(trellis)).astype(np.float64)
    symbol = np.arange(256)
    lane, j = symbol // 8, symbol % 8
    row = 2 * (lane % 4) + np.array([0, 1, 8, 9])[j % 4]
    column = lane // 4 + np.where(j >= 4, 8, 0)
    tiles = np.empty((in_tiles, out_tiles, 16, 16))
    tiles[:, :, row, column] = values
    return tiles.transpose(0, 2, 1, 3).reshape(16 * in_tiles, 16 * out_tiles)


def hadamard(x: Array) -> Array:
    """The transform of the last axis, block by block of 128."""
    matrix = np.ones((1, 1))
    while matrix.shape[0] < 128:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    blocks = x.reshape(*x.shape[:-1], -1, 128) @ (matrix / np.sqrt(128))
    return blocks.reshape(x.shape)


def linear_dequant(linear: Linear) -> Array:
    """float64 [out, in]: the weight in torch Linear's layout."""
    rotated = hadamard(hadamard(decode(linear.trellis)).T)
    return rotated * linear.suh.astype(np.float64) * linear.svh.astype(np.float64)[:, None]


def linear_forward(linear: Linear, x: Array) -> Array:
    """float64 [rows, out] = x [rows, in] through the linear, without building its weight."""
    inner = hadamard(x * linear.suh.astype(np.float64)) @ decode(linear.trellis)
    return hadamard(inner) * linear.svh.astype(np.float64)


def activation(gate: Array, up: Array, limit: float) -> Array:
    """min(silu(gate), limit) * clamp(up, -limit, limit); limit 0: no clamp."""
    silu = gate / (1 + np.exp(-gate))
    if limit == 0:
        return silu * up
    return np.minimum(silu, limit) * np.clip(up, -limit, limit)


def expert_forward(expert: Expert, x: Array, limit: float) -> Array:
    """float64 [rows, hidden]."""
    gate, up = linear_forward(expert.gate, x), linear_forward(expert.up, x)
    return linear_forward(expert.down, activation(gate, up, limit))


def random_linear(
    rng: np.random.Generator, in_features: int, out_features: int, bits: int
) -> Linear:
    """Any bits are a legal trellis; scales give outputs of about the size of the inputs."""
    shape = (in_features // 16, out_features // 16, 16 * bits)
    trellis = rng.integers(-(2**15), 2**15, shape, dtype=np.int16)
    signs = rng.choice([-1.0, 1.0], in_features)
    svh = rng.choice([-1.0, 1.0], out_features) / (1.24 * np.sqrt(in_features))
    return Linear(trellis, signs.astype(np.float16), svh.astype(np.float16))


def random_expert(
    rng: np.random.Generator, hidden: int, intermediate: int, bits: tuple[int, int, int]
) -> Expert:
    return Expert(
        random_linear(rng, hidden, intermediate, bits[0]),
        random_linear(rng, hidden, intermediate, bits[1]),
        random_linear(rng, intermediate, hidden, bits[2]),
    )


def read_linears(file: Path) -> dict[str, Linear]:
    """Every EXL3 linear of a safetensors file, by module name."""
    content = file.read_bytes()
    head = int.from_bytes(content[:8], "little")
    entries = json.loads(content[8 : 8 + head])

    def tensor(name: str, dtype: str) -> NDArray[np.generic]:
        begin, end = entries[name]["data_offsets"]
        data = np.frombuffer(content[8 + head + begin : 8 + head + end], dtype)
        return data.reshape(entries[name]["shape"])

    names = [name.removesuffix(".trellis") for name in entries if name.endswith(".trellis")]
    return {
        name: Linear(
            tensor(f"{name}.trellis", "<i2"),
            tensor(f"{name}.suh", "<f2"),
            tensor(f"{name}.svh", "<f2"),
        )
        for name in names
    }
