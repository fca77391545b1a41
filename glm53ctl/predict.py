"""Expected decode speed per mode, as a range, from the limits of the machine. Pure.

Per token: T = F + max(t_G, t_C), where the GPU's lane t_G = h P b_v + y E / B_p and the CPU's lane
t_C = L A + x E / R0 share the misses x + y = P (1 - h). E bytes per expert, P picks per token, L MoE
layers, h share of picks found in VRAM, B_p link rate, R0 CPU tier rate, F everything that is not a
routed expert, A the hand-off per layer, b_v one cached expert on the GPU. Neither lane can take more
from DRAM than D. Ranges come from inputs that were not measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from glm53ctl.checkpoint import ModelFacts
from glm53ctl.hardware import Hardware
from glm53ctl.plan import Mode

LINK_EFFICIENCY = (0.70, 0.86)  # of a link's payload ceiling, when no copy was measured
CORE_RATE_BYTES_PER_S = {"avx2": (2.2e9, 4.1e9), "avx512": (3.3e9, 7.0e9)}
DRAM_BYTES_PER_S = (30e9, 140e9)  # dual-channel DDR4 to eight channels, when not measured
FIXED_S = (17e-3, 10e-3)  # F: launch-bound stock path, and what trimming it gives
HANDOFF_S = (0.11e-3, 0.03e-3)  # A
CACHED_EXPERT_S = (0.034e-3, 0.0026e-3)  # b_v of a 936 GB/s and a 3.6 TB/s card


@dataclass(frozen=True, slots=True)
class Rates:
    """The inputs of one prediction. Bytes per second; `hit_share` is h."""

    link: float
    tier: float
    dram: float
    hit_share: float
    fixed_s: float
    handoff_s: float
    cached_expert_s: float


@dataclass(frozen=True, slots=True)
class Prediction:
    mode: Mode
    low_tokens_per_s: float
    high_tokens_per_s: float
    limited_by: str
    basis: str  # which inputs were measured and which assumed

    @property
    def text(self) -> str:
        low, high = self.low_tokens_per_s, self.high_tokens_per_s
        return f"{low:.0f}-{high:.0f} tok/s" if high >= 3 else f"{low:.1f}-{high:.1f} tok/s"


def split(facts: ModelFacts, rates: Rates) -> tuple[float, float]:
    """(x, y): misses per token for the CPU and for the link, balanced so that both end together."""
    picks = facts.moe_layers * facts.experts_per_token
    misses = picks * (1 - rates.hit_share)
    if rates.tier <= 0:
        return 0.0, misses
    gpu_s = rates.hit_share * picks * rates.cached_expert_s
    link_s = facts.expert_bytes / rates.link
    tier_s = facts.expert_bytes / rates.tier
    cpu = (gpu_s - facts.moe_layers * rates.handoff_s + misses * link_s) / (link_s + tier_s)
    cpu = min(max(cpu, 0.0), misses)
    return cpu, misses - cpu


def token_s(facts: ModelFacts, rates: Rates, misses: tuple[float, float]) -> float:
    """Seconds per token for a given split (x, y)."""
    picks = facts.moe_layers * facts.experts_per_token
    cpu, link = misses
    gpu_lane = rates.hit_share * picks * rates.cached_expert_s
    gpu_lane += link * facts.expert_bytes / rates.link
    cpu_lane = 0.0
    if cpu > 0:
        cpu_lane = facts.moe_layers * rates.handoff_s + cpu * facts.expert_bytes / rates.tier
    dram_lane = (cpu + link) * facts.expert_bytes / rates.dram
    return rates.fixed_s + max(gpu_lane, cpu_lane, dram_lane)


def predict(
    hardware: Hardware, facts: ModelFacts, mode: Mode, *, slots: int, threads: int
) -> Prediction | None:
    """Decode tok/s of one stream; None when the link's speed is not known at all.

    `slots` experts fit in VRAM and `threads` compute on the CPU.
    """
    if mode is Mode.CPU:
        return _predict_cpu(hardware, facts)
    link = link_range(hardware)
    if link is None:
        return None
    tier = _tier_range(hardware, threads) if mode is Mode.FAST else (0.0, 0.0)
    dram = _measured_or(hardware.measured.ram_read_bytes_per_s, DRAM_BYTES_PER_S)
    hits = _hit_range(slots, facts, mode)
    low, high = (
        Rates(link[i], tier[i], dram[i], hits[i], FIXED_S[i], HANDOFF_S[i], CACHED_EXPERT_S[i])
        for i in (0, 1)
    )
    times = [token_s(facts, rates, split(facts, rates)) for rates in (low, high)]
    return Prediction(
        mode, 1 / max(times), 1 / min(times), _limit(facts, low, high), _basis(hardware, mode)
    )


def _predict_cpu(hardware: Hardware, facts: ModelFacts) -> Prediction:
    """Every weight of a token is read once: resident ones in float32, experts as trellis."""
    dram = _measured_or(hardware.measured.ram_read_bytes_per_s, DRAM_BYTES_PER_S)
    bytes_per_token = cpu_bytes_per_token(facts)
    overhead_s = (facts.layers * 4e-3, facts.layers * 0.5e-3)  # dispatch of one layer's operators
    low, high = (1 / (bytes_per_token / dram[i] + overhead_s[i]) for i in (0, 1))
    return Prediction(Mode.CPU, low, high, "RAM bandwidth", _basis(hardware, Mode.CPU))


def cpu_bytes_per_token(facts: ModelFacts) -> int:
    """What the CPU engine reads for one token."""
    picks = facts.moe_layers * facts.experts_per_token
    return facts.resident_bytes * FLOAT32_GROWTH + picks * facts.expert_bytes


FLOAT32_GROWTH = 6  # resident tensors, mostly 5 and 6 bits a weight, as float32


def _hit_range(slots: int, facts: ModelFacts, mode: Mode) -> tuple[float, float]:
    """Share of picks found in VRAM. 1,344 of 12,096 slots hold 36 % in fast mode, 55 % in exact."""
    share = min(1.0, slots / (facts.moe_layers * facts.experts))
    powers = (3.84, 5.9) if mode is Mode.FAST else (5.0, 6.8)
    low, high = (1 - (1 - share) ** power for power in powers)
    return low, high


def link_range(hardware: Hardware) -> tuple[float, float] | None:
    """Bytes per second of copies to the GPU, low and high; None when nothing is known of the link."""
    if hardware.measured.h2d_bytes_per_s:
        return _measured_or(hardware.measured.h2d_bytes_per_s, (0, 0))
    link = hardware.gpus[0].link if hardware.gpus else None
    ceiling = link.ceiling_bytes_per_s if link else None
    return None if ceiling is None else tuple(ceiling * share for share in LINK_EFFICIENCY)  # type: ignore[return-value]


def _tier_range(hardware: Hardware, threads: int) -> tuple[float, float]:
    if hardware.measured.tier_bytes_per_s:
        return _measured_or(hardware.measured.tier_bytes_per_s, (0, 0))
    vbmi = {"avx512f", "avx512bw", "avx512vbmi"} <= hardware.cpu.flags
    low, high = CORE_RATE_BYTES_PER_S["avx512" if vbmi else "avx2"]
    return low * threads, high * threads


def _measured_or(measured: float | None, assumed: tuple[float, float]) -> tuple[float, float]:
    """A measured rate with 5 % either way, or the assumed range."""
    return assumed if measured is None else (measured * 0.95, measured * 1.05)


def _limit(facts: ModelFacts, low: Rates, high: Rates) -> str:
    """What a faster part would help most: try each, 25 % better, in the middle of the range."""
    middle = Rates(
        *((getattr(low, name) + getattr(high, name)) / 2 for name in Rates.__dataclass_fields__)
    )
    trials = {
        "the PCIe link": replace(middle, link=middle.link * 1.25),
        "the CPU tier": replace(middle, tier=middle.tier * 1.25),
        "RAM bandwidth": replace(middle, dram=middle.dram * 1.25),
        "work outside the experts": replace(middle, fixed_s=middle.fixed_s * 0.8),
    }
    return min(trials, key=lambda name: token_s(facts, trials[name], split(facts, trials[name])))


def _basis(hardware: Hardware, mode: Mode) -> str:
    rates = {
        "link": hardware.measured.h2d_bytes_per_s,
        "RAM": hardware.measured.ram_read_bytes_per_s,
    }
    if mode is Mode.FAST:
        rates["CPU tier"] = hardware.measured.tier_bytes_per_s
    if mode is Mode.CPU:
        rates.pop("link")
    measured = f"measured {hardware.measured.date or ''}".rstrip()
    return ", ".join(f"{name} {measured if rate else 'assumed'}" for name, rate in rates.items())
