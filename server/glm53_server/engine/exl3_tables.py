"""Do exllamav3's pointer tables, as loaded, point into the arena? Part of the contract (exl3_contract.py)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from glm53_server.moe.arena import ExpertArena


def table_differences(
    arena: ExpertArena, row: int, key: str, tables: Sequence[torch.Tensor]
) -> list[str]:
    """What is wrong with the gate, up and down tables of the block `key`, layer `row` of the arena."""
    layout = arena.layout
    first = arena.home + row * layout.layer_bytes
    wrong: list[str] = []
    for part, table in enumerate(tables):
        expected = [
            first + e * layout.record_bytes + layout.offsets[part] for e in range(layout.experts)
        ]
        if table.dtype != torch.int64 or not table.is_cuda or not table.is_contiguous():
            wrong.append(f"{key}: pointer table {part} has another layout")
        elif table.tolist() != expected:
            wrong.append(f"{key}: pointer table {part} does not point into the arena")
    return wrong
