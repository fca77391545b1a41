"""plan(hardware, model, settings) -> a Plan, or what rejected each mode. Pure.

`auto` is an ordered list of modes, each tried by the same functions; the first that fits wins, except
that exact goes before fast where it is predicted to be no slower. Every choice carries its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from glm53ctl.checkpoint import ModelFacts
from glm53ctl.chunks import SIZES, choose_chunk
from glm53ctl.env import GIB
from glm53ctl.errors import NoFit
from glm53ctl.hardware import Hardware
from glm53ctl.layout import core_choice, cpu_layout
from glm53ctl.limits import Rejected, check_gpu, gpu_budget, pick_gpu, ram_budget
from glm53ctl.paths import Paths
from glm53ctl.plan import (
    Budget,
    Choice,
    CpuTierPlan,
    EngineName,
    GpuPlan,
    LimitsPlan,
    ListenPlan,
    Mode,
    ModelPlan,
    Plan,
    ScriptPlan,
)
from glm53ctl.predict import Prediction, cpu_bytes_per_token, predict
from glm53ctl.profile import Profile

DEFAULT_CACHE_TOKENS = 65536
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
SLOWEST_CPU_BYTES_PER_TOKEN = 8 << 30  # beyond this no host decodes one token per second


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint to plan for: its sizes, where it is or would be, and whether it is there."""

    facts: ModelFacts
    path: str
    present: bool = True


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a mode cannot run here, with the number that says so."""

    mode: Mode
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The plan, if any; what rejected the other modes; predictions of the modes that fit."""

    plan: Plan | None
    rejections: tuple[Rejection, ...]
    predictions: tuple[Prediction, ...]
    model_name: str

    def chosen(self) -> Plan:
        """The plan. Raises NoFit listing every rejection."""
        if self.plan is None:
            raise self.refusal() or NoFit("no mode was tried")
        return self.plan

    def refusal(self) -> NoFit | None:
        """The error that lists every rejection; None when there is a plan."""
        if self.plan is not None:
            return None
        lines = [f"  {item.mode:<6} {item.reason}" for item in self.rejections]
        tried_cpu = any(item.mode is Mode.CPU for item in self.rejections)
        flags = "--model tiny" if tried_cpu else "--model tiny --mode cpu"
        hint = f"the bundled model runs here: the same command with {flags}"
        if self.model_name == "tiny":
            hint = None if tried_cpu else "leave out --mode: tiny runs on the CPU"
        return NoFit(
            "\n".join([f"{self.model_name} does not fit this machine:", *lines]), hint=hint
        )


@dataclass(frozen=True, slots=True)
class _Inputs:
    hardware: Hardware
    model: Model
    profile: Profile
    paths: Paths


def consider(hardware: Hardware, model: Model, profile: Profile, paths: Paths) -> Outcome:
    """Try the modes that the settings allow, in order. Raises UsageError for impossible settings."""
    inputs = _Inputs(hardware, model, profile, paths)
    settings = profile.settings
    if settings.engine == EngineName.SCRIPTED:
        return Outcome(_scripted(inputs), (), (), model.facts.name)
    plans: list[tuple[Plan, Prediction | None]] = []
    rejections: list[Rejection] = []
    automatic = settings.mode is Mode.AUTO
    for mode in (Mode.FAST, Mode.EXACT, Mode.CPU) if automatic else (settings.mode,):
        try:
            plan = _cpu_plan(inputs) if mode is Mode.CPU else _gpu_plan(inputs, mode)
            if automatic:
                _check_worth_it(plan[0], model.facts)
            plans.append(plan)
        except Rejected as rejected:
            rejections.append(Rejection(mode, rejected.reason))
    predictions = tuple(prediction for _, prediction in plans if prediction)
    plan = _first(plans) if plans else None
    return Outcome(plan, tuple(rejections), predictions, model.facts.name)


def _first(plans: list[tuple[Plan, Prediction | None]]) -> Plan:
    """The first plan; exact instead of fast where exact is predicted to be no slower."""
    plan, fast = plans[0]
    for other, exact in plans[1:]:
        if plan.mode is not Mode.FAST or other.mode is not Mode.EXACT or not fast or not exact:
            continue
        if exact.low_tokens_per_s >= fast.low_tokens_per_s and (
            exact.high_tokens_per_s >= fast.high_tokens_per_s
        ):
            why = f"no slower than fast ({exact.text} against {fast.text}) and bit-identical"
            choices = tuple(
                replace(item, why=why) if item.key == "mode" else item for item in other.choices
            )
            return replace(other, choices=choices)
    return plan


def _gpu_plan(inputs: _Inputs, mode: Mode) -> tuple[Plan, Prediction | None]:
    hardware, settings, facts = inputs.hardware, inputs.profile.settings, inputs.model.facts
    gpu = pick_gpu(hardware, settings.gpu)
    check_gpu(hardware, gpu)
    hardware = replace(hardware, gpus=(gpu,))  # what follows is about this card and its link
    cache_tokens = _cache_tokens(inputs)
    vram, slots = gpu_budget(gpu, facts, settings, mode, cache_tokens)
    ram = ram_budget(hardware, facts, settings, mode)
    layout = cpu_layout(hardware.cpu, settings, feeds_gpu=True)
    reserve = next(item for item in vram if item.name == "reserve")
    chunk = choose_chunk(hardware, gpu, facts, settings, (slots, reserve.bytes))
    plan = _plan(
        inputs,
        mode=mode,
        engine=EngineName.STOCK if settings.engine == EngineName.STOCK else EngineName.EXL3,
        cpu=layout,
        limits=_limits(inputs, cache_tokens, int(chunk.value)),
        gpu=GpuPlan(
            uuid=gpu.uuid,
            name=gpu.name,
            reserve_bytes=reserve.bytes,
            elastic_bytes=settings.vram_elastic_bytes,
            stage_bytes=settings.vram_stage_bytes,
            vram_limit_bytes=settings.vram_limit_bytes,
            lookahead_experts=settings.lookahead_experts,
            heat_file=str(inputs.paths.cache_dir / f"heat-{inputs.model.facts.name}.bin"),
        ),
        cpu_tier=_tier(inputs) if mode is Mode.FAST else None,
        child_env=_gpu_env(inputs, gpu.uuid),
        budgets=(*vram, *ram),
        choices=(
            _mode_choice(inputs, mode),
            _choice(inputs, "gpu.select", gpu.uuid, f"{gpu.name}, most free VRAM"),
            _choice(inputs, "vram.reserve_gib", f"{reserve.bytes / GIB:.1f} GiB", reserve.why),
            core_choice(hardware.cpu, layout, inputs.profile),
            _choice(inputs, chunk.key, str(settings.chunk_tokens or chunk.value), chunk.why),
        ),
    )
    return plan, predict(hardware, facts, mode, slots=slots, threads=layout.threads)


def _cpu_plan(inputs: _Inputs) -> tuple[Plan, Prediction | None]:
    hardware, settings, facts = inputs.hardware, inputs.profile.settings, inputs.model.facts
    missing = {"torch", "transformers", "fastapi"} - hardware.engines
    if missing:
        raise Rejected(f"{', '.join(sorted(missing))} not installed (pip install 'glm53ctl[cpu]')")
    if settings.load_format != "checkpoint":
        raise Rejected("weights made in memory need a GPU mode")
    if settings.engine == EngineName.STOCK:
        raise Rejected("engine stock is exllamav3, which needs a GPU mode")
    budgets = ram_budget(hardware, facts, settings, Mode.CPU)
    layout = cpu_layout(hardware.cpu, settings, feeds_gpu=False)
    threads = str(layout.threads)
    plan = _plan(
        inputs,
        mode=Mode.CPU,
        engine=EngineName.CPU,
        cpu=layout,
        limits=_limits(inputs, _cache_tokens(inputs)),
        child_env=(*_QUIET, ("CUDA_VISIBLE_DEVICES", ""), ("OMP_NUM_THREADS", threads)),
        budgets=budgets,
        choices=(
            _mode_choice(inputs, Mode.CPU),
            core_choice(hardware.cpu, layout, inputs.profile),
        ),
    )
    return plan, predict(hardware, facts, Mode.CPU, slots=0, threads=layout.threads)


def _scripted(inputs: _Inputs) -> Plan:
    """The scripted engine, only ever by explicit --engine: for tests and demonstrations."""
    layout = cpu_layout(inputs.hardware.cpu, inputs.profile.settings, feeds_gpu=False)
    return _plan(
        inputs,
        mode=Mode.CPU,
        engine=EngineName.SCRIPTED,
        cpu=layout,
        limits=_limits(inputs, _cache_tokens(inputs)),
        child_env=_QUIET,
        script=ScriptPlan(),
        choices=(_choice(inputs, "engine", "scripted", "asked for"),),
    )


def _plan(inputs: _Inputs, **parts: object) -> Plan:
    """A Plan with the parts that every mode has in common."""
    settings, facts = inputs.profile.settings, inputs.model.facts
    key_file = str(settings.api_key_file) if settings.api_key_file else None
    if key_file is None and (settings.host not in LOOPBACK or inputs.profile.key_in_environment):
        key_file = str(inputs.paths.instance_dir(settings.instance) / "api-key")
    return Plan(
        model=ModelPlan(
            path=inputs.model.path,
            served_name=settings.served_name or facts.name,
            context_tokens=min(
                settings.context_tokens or facts.context_tokens,
                facts.context_tokens,
                _cache_tokens(inputs),
            ),
            load_format=settings.load_format,
        ),
        listen=ListenPlan(settings.host, settings.port, key_file),
        **parts,  # pyright: ignore[reportArgumentType]
    )


def _check_worth_it(plan: Plan, facts: ModelFacts) -> None:
    """Raises Rejected for a plan that could run but that auto should not choose."""
    cached = next((item.bytes for item in plan.budgets if item.name == "expert cache"), 0)
    if plan.mode is Mode.FAST and cached == facts.expert_total_bytes:
        raise Rejected("the card holds every expert, which leaves nothing for the CPU")
    needed = cpu_bytes_per_token(facts)
    if plan.mode is Mode.CPU and needed > SLOWEST_CPU_BYTES_PER_TOKEN:
        raise Rejected(
            f"would read {needed / 1e9:.0f} GB per token, less than one token per second; "
            "ask for it with --mode cpu"
        )


def _cache_tokens(inputs: _Inputs) -> int:
    settings = inputs.profile.settings
    asked = settings.cache_tokens or max(DEFAULT_CACHE_TOKENS, settings.context_tokens or 0)
    return asked if settings.cache_tokens else min(asked, inputs.model.facts.context_tokens)


def _limits(inputs: _Inputs, cache_tokens: int, chunk_tokens: int = SIZES[0]) -> LimitsPlan:
    settings = inputs.profile.settings
    return LimitsPlan(
        max_batch=settings.max_batch,
        cache_tokens=cache_tokens,
        chunk_tokens=settings.chunk_tokens or chunk_tokens,
        max_queued=settings.max_queued,
        max_body_bytes=settings.max_body_bytes,
    )


def _tier(inputs: _Inputs) -> CpuTierPlan:
    settings = inputs.profile.settings
    return CpuTierPlan(
        settings.tier_bytes_per_s,
        settings.tier_swizzled,
        settings.frozen_split,
        settings.own_kernels,
    )


_QUIET = (("HF_HUB_OFFLINE", "1"), ("HF_HUB_DISABLE_TELEMETRY", "1"), ("DO_NOT_TRACK", "1"))


def _gpu_env(inputs: _Inputs, uuid: str) -> tuple[tuple[str, str], ...]:
    """What CUDA, Triton and exllamav3 read before our code runs."""
    found = [*_QUIET, ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("CUDA_VISIBLE_DEVICES", uuid)]
    # A queue for every stream: in one of the usual eight, streams wait for each other by accident.
    found.append(("CUDA_DEVICE_MAX_CONNECTIONS", "32"))
    if inputs.profile.settings.triton_pin:
        cache = inputs.paths.cache_dir
        found.append(("TRITON_CACHE_DIR", str(cache / "triton")))
        found.append(("EXLLAMAV3_TUNE_CACHE", str(cache / "exllamav3-tune.bin")))
    return tuple(found)


def _mode_choice(inputs: _Inputs, mode: Mode) -> Choice:
    why = {
        Mode.FAST: "the CPU computes what the card cannot hold",
        Mode.EXACT: "GPU arithmetic only, bit-identical to stock exllamav3",
        Mode.CPU: "no GPU needed",
    }[mode]
    if inputs.profile.settings.mode is Mode.AUTO:
        return Choice("mode", mode.value, why)
    return _choice(inputs, "mode", mode.value, why)


def _choice(inputs: _Inputs, key: str, value: str, why: str) -> Choice:
    origin = inputs.profile.origins[key]
    if origin.layer == "default":
        return Choice(key, value, why)
    return Choice(key, value, why, inputs.profile.origin(key))


def budget_total(budgets: tuple[Budget, ...], pool: str) -> int:
    """Bytes a plan takes from a pool."""
    return sum(item.bytes for item in budgets if item.pool == pool)
