"""What a mode needs of GPU and RAM, and the refusals with the number that does not fit. Pure."""

from __future__ import annotations

from glm53ctl import drivers
from glm53ctl.checkpoint import ModelFacts
from glm53ctl.env import GIB, Settings
from glm53ctl.gpu_select import select_gpu
from glm53ctl.hardware import DriverState, Gpu, Hardware
from glm53ctl.plan import Budget, Mode
from glm53ctl.predict import FLOAT32_GROWTH
from glm53ctl.words import counted

ARENA_SLACK_PERCENT = (
    3  # on top of the experts: page tables, and what pinning them costs the kernel
)
CUDA_CONTEXT_BYTES = 600 << 20
WORKSPACE_BYTES = 1536 << 20  # activations of one prefill chunk and the recurrent state
ATTENTION_BYTES = 1280  # per token and attention layer: latent of 512 and index key of 128, 16 bits
ATTENTION_EVERY = 4  # one layer in four attends; the others keep a state of fixed size
MIG_MIN_BYTES = 20 * GIB
RUNTIME_BYTES = 3 * GIB  # Python, torch and allocator slack of the CPU engine
TINY_RUNTIME_BYTES = GIB
AVX2_SET = ("avx2", "fma", "f16c")
RESERVE_BYTES = {Mode.EXACT: GIB, Mode.FAST: 3 * GIB // 2}


class Rejected(Exception):
    """One mode does not fit; `reason` has the number."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def pick_gpu(hardware: Hardware, selector: str | None) -> Gpu:
    """The GPU to use. Raises Rejected when there is none, UsageError for a bad selector."""
    driver = hardware.driver
    if driver.state is DriverState.ABSENT:
        raise Rejected(driver.detail or "no NVIDIA GPU on this machine")
    if driver.state is not DriverState.OK:
        raise Rejected(f"the NVIDIA driver is not usable ({driver.state}: {driver.detail})")
    if not hardware.gpus:
        raise Rejected("no NVIDIA GPU on this machine")
    return select_gpu(hardware.gpus, selector)


def check_gpu(hardware: Hardware, gpu: Gpu) -> None:
    """Raises Rejected when the card, its driver, the CPU or the installation rules a mode out."""
    if gpu.unified_memory:
        raise Rejected(f"{gpu.name}: unified-memory parts are not supported by this build")
    if gpu.capability is not None and gpu.capability < drivers.MIN_CAPABILITY:
        found = drivers.architecture(gpu.capability)
        raise Rejected(f"{gpu.name}: {found} is not supported by this build, 8.0 or later is")
    needed = drivers.minimum_driver()
    version = drivers.version_tuple(hardware.driver.version)
    if version and version < needed:
        raise Rejected(
            f"driver {hardware.driver.version} is too old, CUDA 13 needs {drivers.version_text(needed)}"
        )
    if gpu.mig_enabled:
        raise Rejected(f"{gpu.name} is divided by MIG; choose a slice with --gpu MIG-...")
    if gpu.parent_uuid and (gpu.total_bytes or 0) < MIG_MIN_BYTES:
        raise Rejected(
            f"the MIG slice has {(gpu.total_bytes or 0) / GIB:.1f} GiB, 20 GiB are needed"
        )
    _check_cpu(hardware)
    missing = {"torch", "exllamav3", "fastapi"} - hardware.engines
    if missing:
        raise Rejected(f"{', '.join(sorted(missing))} not installed (pip install 'glm53ctl[cuda]')")


def _check_cpu(hardware: Hardware) -> None:
    """AVX2 for every GPU mode: exllamav3 and torch are built with it, not only our CPU tier."""
    lacking = [flag for flag in AVX2_SET if flag not in hardware.cpu.flags]
    if lacking:
        masked = ", masked by the hypervisor" if hardware.cpu.hypervisor else ""
        raise Rejected(f"the CPU lacks {', '.join(lacking).upper()}{masked}")
    if hardware.cpu.self_test not in {None, "ok"}:
        raise Rejected(
            f"the CPU kernels do not run here: {hardware.cpu.self_test}, although the flags say AVX2"
        )


def gpu_budget(
    gpu: Gpu, facts: ModelFacts, settings: Settings, mode: Mode, cache_tokens: int
) -> tuple[tuple[Budget, ...], int]:
    """VRAM by consumer, and how many experts the rest holds. Raises Rejected with the shortfall."""
    if gpu.free_bytes is None:
        raise Rejected(f"free VRAM of {gpu.name} is unknown")
    available = min(gpu.free_bytes, settings.vram_limit_bytes or gpu.free_bytes)
    reserve, why = _reserve(gpu, settings, mode)
    attention = cache_tokens * max(1, facts.layers // ATTENTION_EVERY) * ATTENTION_BYTES
    fixed = (
        Budget("vram", "reserve", reserve, why),
        Budget("vram", "resident weights", facts.resident_bytes, "everything but routed experts"),
        Budget("vram", "attention cache", attention, f"{cache_tokens} tokens"),
        Budget("vram", "CUDA context", CUDA_CONTEXT_BYTES, "CUDA, cuBLAS and kernels"),
        Budget("vram", "workspace", WORKSPACE_BYTES, "activations and recurrent state"),
    )
    left = available - sum(item.bytes for item in fixed)
    least = min(2 * settings.vram_stage_bytes, facts.expert_total_bytes)
    if left < least:
        raise Rejected(
            f"VRAM: {(available - left + least) / GIB:.1f} GiB needed, {available / GIB:.1f} GiB free on {gpu.name}"
        )
    slots = min(left // facts.expert_bytes, facts.moe_layers * facts.experts)
    cache = Budget("vram", "expert cache", slots * facts.expert_bytes, counted(slots, "expert"))
    return (*fixed, cache), slots


def _reserve(gpu: Gpu, settings: Settings, mode: Mode) -> tuple[int, str]:
    """VRAM to leave alone: the mode's default, more where a desktop may grow."""
    if settings.vram_reserve_bytes is not None:
        return settings.vram_reserve_bytes, "set"
    default = RESERVE_BYTES[mode]
    desktop = gpu.graphics_bytes
    if gpu.display_active and desktop // 2 > default:
        return desktop // 2, f"a desktop holds {desktop / GIB:.1f} GiB and may grow by half"
    return default, f"{mode} mode's default"


def arena_bytes(facts: ModelFacts) -> int:
    """RAM to plan with for the experts."""
    return facts.expert_total_bytes * (100 + ARENA_SLACK_PERCENT) // 100


def arena_words(facts: ModelFacts) -> str:
    """What those bytes are: `106.3 GiB and 3 % of slack`."""
    size = facts.expert_total_bytes
    plain = f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / (1 << 20):.0f} MiB"
    return f"{plain} and {ARENA_SLACK_PERCENT} % of slack"


def ram_budget(
    hardware: Hardware, facts: ModelFacts, settings: Settings, mode: Mode
) -> tuple[Budget, ...]:
    """RAM by consumer. Raises Rejected naming what limits it and by how much it falls short."""
    ram = hardware.ram
    arena = arena_bytes(facts)
    if mode is Mode.CPU:
        small = facts.expert_total_bytes < GIB
        consumers = (
            Budget("ram", "experts", arena, f"kept as trellis: {arena_words(facts)}"),
            Budget("ram", "weights", facts.resident_bytes * FLOAT32_GROWTH, "as float32"),
            Budget("ram", "runtime", TINY_RUNTIME_BYTES if small else RUNTIME_BYTES, "torch"),
        )
        default_margin = 0 if small else _margin(ram.total_bytes)
    else:
        consumers = (
            Budget("ram", "experts", arena, f"one pinned copy: {arena_words(facts)}"),
            Budget("ram", "runtime", facts.resident_bytes, "weights on their way to the card"),
        )
        default_margin = _margin(ram.total_bytes)
        _check_pinning(hardware, arena)
    if not ram.total_bytes:
        raise Rejected("host RAM is unknown: /proc/meminfo cannot be read")
    margin = default_margin if settings.ram_margin_bytes is None else settings.ram_margin_bytes
    budgets = (*consumers, Budget("ram", "margin", margin, "left to the rest of the machine"))
    needed = sum(item.bytes for item in budgets)
    usable = ram.usable_bytes
    if needed > usable:
        raise Rejected(
            f"RAM: {needed / GIB:.1f} GiB needed, {usable / GIB:.1f} GiB usable "
            f"(limited by {ram.limiter})"
        )
    return budgets


def _check_pinning(hardware: Hardware, arena_bytes: int) -> None:
    wall = hardware.measured.pin_limit_bytes
    if wall is not None and wall < arena_bytes:
        where = " (WSL2 limits pinned memory)" if hardware.host.wsl else ""
        raise Rejected(
            f"only {wall / GIB:.2f} GiB can be pinned, {arena_bytes / GIB:.1f} GiB needed{where}"
        )


def _margin(total_bytes: int) -> int:
    return max(4 * GIB, total_bytes // 20)
