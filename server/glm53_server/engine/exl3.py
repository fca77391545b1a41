"""The GPU engine: stock exllamav3 1.5.1 with our memory tiers (or without any, as the reference)."""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

from glm53_kernels import CpuKernels, KernelError
from glm53_kernels.cuda import CudaKernelError, CudaKernels
from glm53_server.engine.base import (
    EngineInfo,
    EngineState,
    GenRequest,
    Progress,
)
from glm53_server.engine.exl3_contract import UnsupportedExllamav3
from glm53_server.engine.exl3_dummy import DummySpec, DummyValues, write_directory
from glm53_server.engine.exl3_memory import explain, read_limits
from glm53_server.engine.exl3_model import LoadedModel, LoadOptions, load_model
from glm53_server.engine.exl3_session import Session
from glm53_server.engine.exl3_tiers import (
    VramBudget,
    build_cpu_lane,
    build_tiers,
    end_threads,
    set_split,
)
from glm53_server.engine.exl3_worker import Exl3Worker
from glm53_server.engine.jobs import Job
from glm53_server.engine.threaded import ThreadedEngine
from glm53_server.moe.arena import PinRefused
from glm53_server.moe.cpu_tier import CpuLane
from glm53_server.moe.layer import ExpertTiers
from glm53_server.moe.lookahead import AUTO
from glm53_server.moe.pressure import is_out_of_memory
from glm53_server.moe.routing_trace import RoutingTrace, TraceSpec
from glm53_server.moe.split import LaneCosts, SplitState
from glm53ctl.checkpoint import open_checkpoint
from glm53ctl.errors import BadModel, ChildExit, StartFailed, UsageError
from glm53ctl.plan import CpuTierPlan, EngineName, Plan


class GpuUnusable(StartFailed):
    """The planned GPU is missing, or its software is not what the plan needs."""

    error_id = "PLAN-003"
    child_exit = ChildExit.NO_GPU


class PinLimit(StartFailed):
    """Host memory for the experts was refused: the message names the limit, the hint the way out."""

    error_id = "MEM-002"
    child_exit = ChildExit.NO_MEMORY

    @classmethod
    def of(cls, err: PinRefused) -> PinLimit:
        limit, fix = explain(read_limits(), err.pinned_bytes, err.wanted_bytes)
        return cls(f"{err}: {limit}", hint=fix)


class VramTaken(StartFailed):
    """VRAM that the plan counts on is in use by another process."""

    error_id = "MEM-003"
    child_exit = ChildExit.NO_MEMORY


class UnsupportedRuntime(StartFailed):
    """exllamav3 or the CUDA library is of another version."""

    error_id = "EXL-001"
    child_exit = ChildExit.UNSUPPORTED


class Exl3Engine(ThreadedEngine[Exl3Worker]):
    """See engine.base.Engine. Owns one thread, which owns the Generator."""

    def __init__(self, session: Session, info: EngineInfo) -> None:
        self._session = session
        self._numbers = count(1)
        super().__init__(info, Exl3Worker(session))

    @property
    def state(self) -> EngineState:
        if not self._worker.alive:
            return EngineState.LOST
        tiers = self._session.tiers
        degraded = tiers is not None and tiers.cpu_lane is not None and not tiers.cpu_lane.enabled
        return EngineState.DEGRADED if degraded else EngineState.READY

    async def start(self, request: GenRequest) -> Job:
        grammar_filter = None
        if request.grammar is not None:
            grammar_filter = await asyncio.to_thread(self._session.compile_filter, request.grammar)
        # Clients choose their ids, and two may choose alike: events must not reach the other's reader.
        unique = f"{request.request_id}#{next(self._numbers)}"
        job = Job(replace(request, request_id=unique), None)
        self._worker.add(job, grammar_filter)
        return job

    def stats(self) -> dict[str, object]:
        body = super().stats() | {"lost": self._worker.lost}
        tiers = self._session.tiers
        if self._session.tier_stats is not None:
            body["expert_cache"] = [self._session.tier_stats]
        if tiers is not None and tiers.cpu_lane is not None:
            body["cpu_tier"] = tiers.cpu_lane.stats()
        return body

    def release(self) -> None:
        self._session.close()


def load(plan: Plan, progress: Progress) -> Exl3Engine:
    """Load plan.model on plan.gpu. Raises BadModel, GpuUnusable, UnsupportedRuntime, PinLimit or VramTaken."""
    started = time.monotonic()
    if plan.gpu is None:
        raise UsageError("a plan for the exl3 engine needs a gpu section")
    try:
        spec = DummySpec.parse(plan.model.load_format)
    except ValueError as err:
        raise UsageError(str(err)) from err
    options = _options(plan, spec)
    tiered = plan.engine is EngineName.EXL3
    try:
        kernels = CudaKernels() if tiered else None
        loaded = load_model(options, kernels, progress)
        tiers = _tiers(loaded, kernels, plan, spec) if kernels is not None else None
        session = _session(loaded, tiers, plan)
    except (PinRefused, RuntimeError, KernelError, UnsupportedExllamav3) as err:
        named = _named(err)
        if named is None:
            raise
        raise named from err
    info = EngineInfo(
        engine=plan.engine.value,
        model_path=plan.model.path,
        served_name=plan.model.served_name,
        context_tokens=min(plan.model.context_tokens, options.cache_tokens - 1),
        vocab_size=loaded.config.vocab_size,
        eos_ids=frozenset(loaded.config.eos_token_id_list),
        max_batch=plan.limits.max_batch,
        details={"load_s": round(time.monotonic() - started, 2), "phase_s": dict(loaded.phase_s)},
    )
    return Exl3Engine(session, info)


def _named(err: BaseException) -> StartFailed | None:
    """What a failed load is called; None for a failure nobody foresaw."""
    if isinstance(err, PinRefused):
        return PinLimit.of(err)
    if is_out_of_memory(err):
        return VramTaken(
            f"VRAM was taken after sizing: {str(err).splitlines()[0]}",
            hint="nvidia-smi shows who holds it; end that process, then `glm53ctl up` again",
        )
    if isinstance(err, CudaKernelError | KernelError | UnsupportedExllamav3):
        return UnsupportedRuntime(str(err), hint="pip install 'glm53ctl[cuda]' and `make kernels`")
    return None


def _options(plan: Plan, spec: DummySpec | None) -> LoadOptions:
    import torch

    if not torch.cuda.is_available():
        raise GpuUnusable(
            "no CUDA device is visible to the server", hint="glm53ctl doctor --only GPU"
        )
    dummy: DummyValues | None = None
    if spec is None:
        directory = open_checkpoint(Path(plan.model.path)).path
    else:
        directory = Path(tempfile.mkdtemp(prefix="glm53-dummy-"))
        dummy = DummyValues(write_directory(spec, directory, Path(plan.model.path)))
    return LoadOptions(
        directory=directory,
        cache_tokens=-(-plan.limits.cache_tokens // 256) * 256,
        max_batch=plan.limits.max_batch,
        chunk_tokens=plan.limits.chunk_tokens,
        device="cuda:0",  # the supervisor made the planned GPU the only visible one
        fill_threads=max(1, plan.cpu.threads),
        dummy=dummy,
    )


def _tiers(
    loaded: LoadedModel, kernels: CudaKernels, plan: Plan, spec: DummySpec | None
) -> ExpertTiers:
    gpu, tier = plan.gpu, plan.cpu_tier
    assert loaded.arena is not None
    assert gpu is not None
    trace = None
    if spec is not None:
        layout = loaded.arena.layout
        shape = TraceSpec(layers=layout.layers, experts=layout.experts, picks=8)
        trace = RoutingTrace(shape, loaded.device)
    budget = VramBudget(
        gpu.reserve_bytes,
        gpu.elastic_bytes,
        gpu.stage_bytes,
        gpu.vram_limit_bytes,
        gpu.cache_slots,
        _lookahead(gpu.lookahead_experts, tier),
        heat_file=Path(gpu.heat_file) if gpu.heat_file and spec is None else None,
    )
    with ExitStack() as undo:
        undo.callback(loaded.arena.close)  # a load that fails leaves nothing pinned
        lane = None if tier is None else _cpu_lane(loaded, kernels, plan, tier)
        if lane is not None:
            undo.callback(lane.close)
        try:
            tiers = build_tiers(loaded, kernels, budget, trace, cpu_lane=lane)
        except RuntimeError as err:
            if is_out_of_memory(err):
                raise
            raise BadModel(f"{loaded.config.directory}: {err}") from err
        if tiers.lookahead is not None:
            undo.callback(
                tiers.lookahead.close
            )  # its thread reads memory that goes with the object
        if lane is not None and tier is not None:
            set_split(lane, tiers.residency, tier)
        undo.pop_all()
    return tiers


def _session(loaded: LoadedModel, tiers: ExpertTiers | None, plan: Plan) -> Session:
    """The session; where it cannot begin, the threads of the tiers end before the memory they read goes."""
    with ExitStack() as undo:
        if loaded.arena is not None:
            undo.callback(loaded.arena.close)
        if tiers is not None:
            end_threads(tiers, undo)
        limits = plan.limits
        session = Session(
            loaded, tiers, max_batch=limits.max_batch, chunk_tokens=limits.chunk_tokens
        )
        undo.pop_all()
    return session


def _lookahead(wanted: int, tier: CpuTierPlan | None) -> int:
    """A frozen split is for reproducible runs: where an expert is must not follow the clock either."""
    frozen = tier is not None and tier.frozen_split
    return 0 if wanted == AUTO and frozen else wanted


def _cpu_lane(loaded: LoadedModel, kernels: CudaKernels, plan: Plan, tier: CpuTierPlan) -> CpuLane:
    pool = CpuKernels(
        threads=plan.cpu.threads, cpus=plan.cpu.cpus[: plan.cpu.threads], precision="fast"
    )
    start = SplitState(LaneCosts(2e-4, 2e-4, 5e-5), 0.5, frozen=tier.frozen_split)
    lane = build_cpu_lane(loaded, kernels, pool, start)
    lane.own_kernels = tier.own_kernels
    return lane
