"""VRAM that other processes take after the cache was sized: shrink at a refusal, grow when there is room.

A refused allocation fails its request; the cache then gives memory back until the reserve is free
again, so that the next request works. Engine thread only; both functions wait for the device.
"""

from __future__ import annotations

import torch

from glm53_server.moe.prefill import PrefillStager

LEAST_FREE_BYTES = 256 << 20  # what the activations of a step need, whatever the reserve says


def is_out_of_memory(err: BaseException) -> bool:
    """True for every way in which a full card shows: torch's, the driver's and the libraries'."""
    if isinstance(err, torch.OutOfMemoryError):
        return True
    words = str(err).lower()
    return isinstance(err, RuntimeError) and ("out of memory" in words or "alloc_failed" in words)


def make_room(stager: PrefillStager, device: torch.device) -> int:
    """Give slots up until the reserve is free; returns the bytes given."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free_bytes, _ = torch.cuda.mem_get_info(device)
    with torch.inference_mode():
        given = stager.shrink(max(stager.reserve_bytes, LEAST_FREE_BYTES) - free_bytes)
    torch.cuda.empty_cache()
    return given


def take_back(stager: PrefillStager, device: torch.device) -> int:
    """Take given-up slots again that fit beside twice the reserve; returns how many came back."""
    if not stager.given_up:
        return 0
    torch.cuda.empty_cache()
    free_bytes, _ = torch.cuda.mem_get_info(device)
    with torch.inference_mode():
        return stager.regrow(free_bytes - 2 * max(stager.reserve_bytes, LEAST_FREE_BYTES))
