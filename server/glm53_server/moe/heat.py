"""How warm experts are: the device keeps aged counts as of each expert's last pick, and here they are read.

The arithmetic is that of csrc/core/cache_policy.h, integer by integer.
"""

from __future__ import annotations

from pathlib import Path

import torch

HALF_LIFE = 64  # decode steps
# The first bytes of a file, so that one with counts of another meaning or scale is no file of ours.
MAGIC = b"glm53 aged heat 1\n"


def aged(heat: torch.Tensor, last: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    """Heat at step `now`: int64 [keys], in 65536ths of a pick.

    heat: int32 [keys] as of step last, int32 [keys]; now: integer [] or [1]; steps may wrap at 2**32.
    """
    age = (now.long() - last.long()) & 0xFFFFFFFF
    rest = age % HALF_LIFE
    kept = (1 << 16) - (rest * (44032 - 176 * rest) >> 6)
    return (heat.long() * kept >> 16) >> (age // HALF_LIFE).clamp(max=63)


def save(path: Path, heat: torch.Tensor) -> None:
    """Write heat [keys], in one step that a crash leaves done or undone. Raises OSError."""
    scratch = path.with_suffix(".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch.write_bytes(MAGIC + heat.to(torch.int32).cpu().numpy().tobytes())
    scratch.replace(path)


def load(path: Path, keys: int) -> torch.Tensor | None:
    """Heat int32 [keys] on the CPU; None when there is no such file for this geometry."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if not content.startswith(MAGIC) or len(content) != len(MAGIC) + 4 * keys:
        return None
    return torch.frombuffer(bytearray(content[len(MAGIC) :]), dtype=torch.int32).clamp(min=0)
