"""Cards that one can plan for without having them, as data: `plan --what-if gpu=RTX3090`.

Memory as nvidia-smi shows it, the link as the data sheet has it; as of 2026-11. Nothing here is measured.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from glm53ctl.drivers import capability_by_name
from glm53ctl.env import GIB, nearest
from glm53ctl.errors import UsageError
from glm53ctl.hardware import Gpu, Hardware, Link
from glm53ctl.words import counted

NOT_HERE = "GPU-what-if"  # where a card that is here has its UUID
DRIVER_BYTES = 640 << 20  # of an idle card's memory; 0.6 GiB on an H200


@dataclass(frozen=True, slots=True)
class Card:
    """A card by NVML's name, with its memory and the generation of its sixteen lanes."""

    name: str
    vram_mib: int
    pcie: int


CARDS = {
    "RTX3090": Card("NVIDIA GeForce RTX 3090", 24576, 4),
    "RTX3090Ti": Card("NVIDIA GeForce RTX 3090 Ti", 24564, 4),
    "RTX4090": Card("NVIDIA GeForce RTX 4090", 24564, 4),
    "RTX5090": Card("NVIDIA GeForce RTX 5090", 32607, 5),
    "A5000": Card("NVIDIA RTX A5000", 24564, 4),
    "A6000": Card("NVIDIA RTX A6000", 49140, 4),
    "RTX6000Ada": Card("NVIDIA RTX 6000 Ada Generation", 49140, 4),
    "RTXPRO6000": Card("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, 5),
    "A10": Card("NVIDIA A10", 23028, 4),
    "L4": Card("NVIDIA L4", 23034, 4),
    "A100": Card("NVIDIA A100 80GB PCIe", 81920, 4),
    "H100": Card("NVIDIA H100 PCIe", 81559, 5),
    "H200": Card("NVIDIA H200", 143771, 5),
}


def named_card(name: str) -> Card:
    """The card of a name: `RTX3090`, `3090`, `rtx 3090`. Raises UsageError listing those known."""
    known = {_plain(key): key for key in CARDS} | {
        _plain(card.name): key for key, card in CARDS.items()
    }
    wanted = _plain(name)
    if wanted in known:
        return CARDS[known[wanted]]
    close = nearest(wanted, set(known)) if wanted else None
    names = ", ".join(CARDS)
    raise UsageError(
        f"--what-if gpu={name[:60]!r} is not a card that is known here",
        hint=f"did you mean {known[close]}?"
        if close
        else f"one of {names}; or vram= and pcie= beside one",
    )


def _plain(name: str) -> str:
    """A name without what people leave out: `NVIDIA GeForce RTX 3090` as `3090`."""
    return re.sub(r"[^a-z0-9]|nvidia|geforce|rtx", "", name.lower())


def assumed_gpu(card: Card) -> Gpu:
    """The card alone in a slot that is as wide as it, idle and without a display."""
    total = card.vram_mib << 20
    return Gpu(
        index=0,
        uuid=NOT_HERE,
        name=card.name,
        capability=capability_by_name(card.name),
        total_bytes=total,
        free_bytes=total - DRIVER_BYTES,
        link=Link(card.pcie, 16, card.pcie, 16),
    )


def assumptions(hardware: Hardware) -> list[str]:
    """A line for each card that is not here: where its numbers come from, and those of the rest."""
    cores = counted(hardware.cpu.usable_cores, "core")
    rest = f"{cores} and {hardware.ram.total_bytes / GIB:.1f} GiB of RAM"
    return [
        f"{gpu.name} is not here: {(gpu.total_bytes or 0) / GIB:.1f} GiB of VRAM, "
        f"{_slot(gpu.link)} and a driver that is new enough are assumed, nothing of it is measured; "
        f"beside it {rest}, this machine's unless cores= or ram= says otherwise"
        for gpu in hardware.gpus
        if gpu.uuid == NOT_HERE
    ]


def _slot(link: Link | None) -> str:
    return f"PCIe Gen{link.generation} x{link.width}" if link else "no link"
