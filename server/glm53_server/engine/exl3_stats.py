"""Tier counters as /stats shows them; names of the existing deployment where the meaning is the same."""

from __future__ import annotations

import time
from dataclasses import asdict

import torch

from glm53_server.engine.exl3_model import LoadedModel
from glm53_server.moe.layer import ExpertTiers
from glm53_server.moe.lookahead import Lookahead


def tier_stats(loaded: LoadedModel, tiers: ExpertTiers) -> dict[str, object]:
    """One device's expert cache: slots, hits, bytes over the link, staging. Waits for the device."""
    residency = tiers.residency
    counters = residency.counters()
    layout = residency.layout
    seen = counters["hits"] + counters["misses"]
    body: dict[str, object] = {
        "at_s": round(time.monotonic(), 3),  # these are read now and then, not at each /stats
        "device": str(residency.device),
        "layers": layout.layers,
        "experts": layout.experts,
        "slots": residency.slots,
        "slot_bytes": layout.record_bytes,
        "arena_gb": round(layout.total_bytes / 1e9, 2),
        "hits": counters["hits"],
        "misses": counters["misses"],
        "admitted": counters["admitted"],
        "no_victim": counters["no_victim"],
        "evictions": counters["evictions"],
        "invalid_picks": counters["invalid"],
        "bad_slots": counters["bad"],
        "hit_rate": round(counters["hits"] / seen, 4) if seen else None,
        "decode_link_gb": round(
            (counters["admitted"] + counters["lookahead"]) * layout.record_bytes / 1e9, 3
        ),
        "lookahead": {"copied": counters["lookahead"], "waits": counters["lookahead_waits"]}
        | _pace(tiers.lookahead),
        "decode_steps": tiers.decode_steps,
        "in_place_passes": tiers.in_place_passes,
        "mem_alloc_gb": round(torch.cuda.memory_allocated(residency.device) / 1e9, 2),
        "mem_peak_gb": round(torch.cuda.max_memory_allocated(residency.device) / 1e9, 2),
        "load_phase_s": {k: round(v, 2) for k, v in loaded.phase_s.items()},
    }
    if tiers.stager is not None:
        stage = asdict(tiers.stager.stats)
        body["elastic"] = {
            key: stage.pop(key)
            for key in ("enter", "exit", "realloc_fail", "refilled", "shrunk", "regrown")
        } | {"in_prefill": tiers.stager.in_prefill, "given_up": tiers.stager.given_up}
        body["stage"] = stage | {"per_buffer": tiers.stager.capacity}
    return body


def _pace(ahead: Lookahead | None) -> dict[str, object]:
    """What is looked ahead per layer: at most so many; what follows the steps, by their rows."""
    if ahead is None:
        return {"experts_per_layer": 0}
    if ahead.paces is None:
        return {"experts_per_layer": ahead.limit}
    return {
        "experts_per_layer": {rows: pace.best for rows, pace in sorted(ahead.paces.items())},
        "step_ms": {
            rows: {limit: round(took * 1e3, 2) for limit, took in sorted(pace.took_s.items())}
            for rows, pace in sorted(ahead.paces.items())
        },
    }
