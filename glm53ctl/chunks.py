"""How many prompt tokens one prefill pass takes, when nobody says. Pure.

Every pass streams the experts that VRAM does not hold, whatever its length. So a pass should be long
enough that computing it takes as long as that; longer only costs memory for activations. Seconds per
token are those of the stock kernels: 7.5 s for 8,192 on an RTX 3090 (published), 13.1 s for 32,768 on an
H200 (bench/results/*-fast-speed.json); other architectures are assumed by their tensor throughput.
"""

from __future__ import annotations

from glm53ctl.checkpoint import ModelFacts
from glm53ctl.env import Settings
from glm53ctl.hardware import Gpu, Hardware
from glm53ctl.plan import Choice
from glm53ctl.predict import link_range

SIZES = (4096, 8192, 16384)
# 5,118 MiB for a pass of 8,192 and 1,331 MiB for 2,048 tokens at a hidden size of 4096, on an H200.
ACTIVATION_BYTES_PER_HIDDEN = 166
COMPUTE_S_PER_TOKEN = {(8, 0): 0.5e-3, (8, 6): 0.92e-3, (8, 9): 0.45e-3}
NEWER_S_PER_TOKEN = 0.4e-3
KEY = "limits.chunk_tokens"


def choose_chunk(
    hardware: Hardware, gpu: Gpu, facts: ModelFacts, settings: Settings, cache: tuple[int, int]
) -> Choice:
    """The chunk as a Choice. cache: (experts that stay in VRAM, bytes in reserve beside them)."""
    slots, reserve_bytes = cache
    link = link_range(hardware)
    streamed = facts.expert_total_bytes - slots * facts.expert_bytes
    if link is None or streamed <= 0:
        why = "the link's speed is not known" if link is None else "no expert is streamed"
        return Choice(KEY, str(SIZES[0]), why)
    stream_s = streamed / (sum(link) / 2)
    token_s = COMPUTE_S_PER_TOKEN.get(gpu.capability or (8, 6), NEWER_S_PER_TOKEN)
    elastic_bytes = min(settings.vram_elastic_bytes, slots * facts.expert_bytes)
    room = reserve_bytes + elastic_bytes - 2 * settings.vram_stage_bytes
    fitting = [SIZES[0]]
    fitting += [n for n in SIZES[1:] if ACTIVATION_BYTES_PER_HIDDEN * facts.hidden * n <= room]
    chunk = next((n for n in fitting if n * token_s >= stream_s), fitting[-1])
    why = f"about {chunk * token_s:.1f} s to compute, {stream_s:.1f} s to stream the experts"
    if chunk == fitting[-1] != SIZES[-1] and chunk * token_s < stream_s:
        why += "; more does not fit vram.elastic_gib"
    return Choice(KEY, str(chunk), why)
