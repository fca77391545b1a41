"""NVIDIA's driver and card generations as data, dated: check against NVIDIA's tables at a release.

As of 2026-11. Versions are compared as tuples of ints, never as text or floats.
"""

from __future__ import annotations

ENGINE_CUDA = (13, 0)  # what the torch and exllamav3 builds we pin are made for
MIN_DRIVER = {  # CUDA of a build -> least Linux driver
    (12, 0): (525, 60, 13),
    (13, 0): (580, 65, 6),
}
MIN_CAPABILITY = (8, 0)
ARCHITECTURES = {
    (7, 0): "Volta", (7, 5): "Turing", (8, 0): "Ampere", (8, 6): "Ampere", (8, 7): "Ampere",
    (8, 9): "Ada", (9, 0): "Hopper", (10, 0): "Blackwell", (10, 3): "Blackwell",
    (12, 0): "Blackwell", (12, 1): "Blackwell",
}  # fmt: skip
# Only for tools that do not report a capability: the first words that match decide.
CAPABILITY_BY_NAME = (
    ("RTX 3090", (8, 6)), ("RTX A5000", (8, 6)), ("RTX A6000", (8, 6)), ("A100", (8, 0)),
    ("NVIDIA A10", (8, 6)), ("RTX 4090", (8, 9)), ("NVIDIA L4", (8, 9)), ("RTX 6000 Ada", (8, 9)),
    ("RTX 5090", (12, 0)), ("RTX PRO 6000", (12, 0)), ("H100", (9, 0)), ("H200", (9, 0)),
    ("GB10", (12, 1)), ("B200", (10, 0)),
)  # fmt: skip


def version_tuple(text: str | None) -> tuple[int, ...]:
    """ "580.65.06" as (580, 65, 6); drivers have two or three parts."""
    parts = (text or "").split(".")
    return tuple(int(part) for part in parts if part.isdigit())


def minimum_driver() -> tuple[int, ...]:
    return MIN_DRIVER[ENGINE_CUDA]


def version_text(version: tuple[int, ...]) -> str:
    """(580, 65, 6) as NVIDIA writes it: "580.65.06"."""
    return ".".join(str(part) if index < 2 else f"{part:02d}" for index, part in enumerate(version))


def architecture(capability: tuple[int, int]) -> str:
    """ "Turing 7.5": the generation's name where it is known."""
    name = ARCHITECTURES.get(capability, "")
    return f"{name} {capability[0]}.{capability[1]}".strip()


def capability_by_name(name: str) -> tuple[int, int] | None:
    return next((found for words, found in CAPABILITY_BY_NAME if words in name), None)
