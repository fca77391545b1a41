"""The engine without a GPU: transformers on the CPU, routed experts from their trellis bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import torch

from glm53_kernels import BadArgument, CpuKernels, KernelError
from glm53_server.engine.base import (
    Done,
    EngineError,
    EngineInfo,
    EngineState,
    Event,
    Failed,
    GenRequest,
    Progress,
)
from glm53_server.engine.cpu_generate import generate
from glm53_server.engine.cpu_grammar import GrammarCompiler
from glm53_server.engine.cpu_model import CpuModel, load_model
from glm53_server.engine.cpu_worker import Worker
from glm53_server.engine.jobs import Bounds, Ending, Job
from glm53ctl.checkpoint import Checkpoint, facts, open_checkpoint
from glm53ctl.errors import BadModel, ChildExit, StartFailed, UsageError
from glm53ctl.plan import Plan

# Below this, a matrix product is done before a second core has woken up, and on a busy machine the
# wait for it costs more than ten times what it saves.
_PARALLEL_FROM_BYTES = 256 << 20


class CpuEngine:
    """See engine.base.Engine. Owns one thread, which owns the model."""

    def __init__(
        self,
        model: CpuModel,
        kernels: CpuKernels,
        grammars: GrammarCompiler,
        info: EngineInfo,
        torch_threads: int,
    ) -> None:
        self._info = info
        self._kernels = kernels
        self._grammars = grammars
        self._bounds = Bounds(info.vocab_size, info.context_tokens)
        self._worker = Worker(
            lambda job: generate(model, job.request, job.guide, info.context_tokens),
            max_running=info.max_batch,
            threads=torch_threads,
        )
        self._ending = Ending(self._end)

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def state(self) -> EngineState:
        return EngineState.READY if self._worker.alive else EngineState.LOST

    @property
    def steps(self) -> int:
        return self._worker.counters.steps

    @property
    def running(self) -> int:
        return self._worker.running

    @property
    def queued(self) -> int:
        return self._worker.waiting

    async def submit(self, request: GenRequest) -> AsyncIterator[Event]:
        """See Engine.submit. A request that can never run fails before anything is computed."""
        try:
            self._bounds.check(request)
            guide = None
            if request.grammar is not None:
                guide = await asyncio.to_thread(self._grammars.compile, request.grammar)
            job = Job(request, guide)
            self._worker.add(job)
        except EngineError as err:
            yield Failed(err)
            return
        try:
            while True:
                for event in await job.arrived.get():
                    yield event
                    if isinstance(event, Done | Failed):
                        return
        finally:
            self._worker.cancel(job)

    def stats(self) -> dict[str, object]:
        counters = self._worker.counters
        return {
            "requests": counters.requests,
            "requests_failed": counters.failed,
            "requests_cancelled": counters.cancelled,
            "prompt_tokens": counters.prompt_tokens,
            "completion_tokens": counters.completion_tokens,
            "prefill_s": round(counters.prefill_s, 3),
            "decode_s": round(counters.decode_s, 3),
            "tokens_per_s": round(counters.recent_tokens_per_s(), 2),
            "cpu": dict(self._info.details),
        }

    async def close(self) -> None:
        await self._ending.wait()

    async def _end(self) -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._worker.stop(lambda: loop.call_soon_threadsafe(ended.set))
        await ended.wait()
        self._worker.join()
        self._kernels.close()


def load(plan: Plan, progress: Progress) -> CpuEngine:
    """Load plan.model.path. Raises BadModel naming the file at fault."""
    if plan.model.load_format != "checkpoint":
        raise UsageError(
            f"the CPU engine cannot load {plan.model.load_format!r}",
            hint="dummy weights need a GPU mode",
        )
    started_s = time.monotonic()
    checkpoint = open_checkpoint(Path(plan.model.path))
    sizes = facts(checkpoint)
    grammars = GrammarCompiler(checkpoint.path / "tokenizer.json", sizes.vocab_size, sizes.eos_ids)
    kernels = _kernels(plan)
    model = _model(checkpoint, kernels, progress)
    torch_threads = plan.cpu.threads if sizes.resident_bytes >= _PARALLEL_FROM_BYTES else 1
    info = EngineInfo(
        engine="cpu",
        model_path=plan.model.path,
        served_name=plan.model.served_name,
        context_tokens=min(plan.model.context_tokens, sizes.context_tokens),
        vocab_size=sizes.vocab_size,
        eos_ids=frozenset(sizes.eos_ids),
        max_batch=plan.limits.max_batch,
        details={
            "threads": kernels.threads,
            "torch_threads": torch_threads,
            "isa": kernels.isa,
            "load_s": round(time.monotonic() - started_s, 2),
        },
    )
    return CpuEngine(model, kernels, grammars, info, torch_threads)


class KernelsUnusable(StartFailed):
    """The native library is missing, stale or of another ABI: no restart heals that."""

    error_id = "KRN-001"
    child_exit = ChildExit.UNSUPPORTED


def _kernels(plan: Plan) -> CpuKernels:
    try:
        return CpuKernels(threads=plan.cpu.threads)
    except KernelError as err:
        raise KernelsUnusable(str(err), hint=err.hint) from err


def _model(checkpoint: Checkpoint, kernels: CpuKernels, progress: Progress) -> CpuModel:
    # OpenMP keeps a pool of threads per calling thread, and two pools fight for the same cores: the
    # worker's thread alone may have one.
    torch.set_num_threads(1)
    try:
        return load_model(checkpoint, kernels, progress)
    except BadArgument as err:
        raise BadModel(f"{checkpoint.path}: {err}") from err
    except RuntimeError as err:
        if "allocate memory" in str(err):  # torch has no class for it on the CPU
            raise MemoryError(str(err)) from err
        raise
