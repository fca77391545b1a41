"""The engine without a GPU: transformers on the CPU, routed experts from their trellis bytes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import torch

from glm53_kernels import BadArgument, CpuKernels, KernelError
from glm53_server.engine.base import (
    EngineInfo,
    EngineState,
    GenRequest,
    Progress,
)
from glm53_server.engine.cpu_generate import generate
from glm53_server.engine.cpu_grammar import GrammarCompiler
from glm53_server.engine.cpu_model import CpuModel, load_model
from glm53_server.engine.cpu_worker import Worker
from glm53_server.engine.jobs import Job
from glm53_server.engine.threaded import ThreadedEngine
from glm53ctl.checkpoint import Checkpoint, facts, open_checkpoint
from glm53ctl.errors import BadModel, ChildExit, StartFailed, UsageError
from glm53ctl.plan import Plan

# Below this, a matrix product is done before a second core has woken up, and on a busy machine the
# wait for it costs more than ten times what it saves.
_PARALLEL_FROM_BYTES = 256 << 20


class CpuEngine(ThreadedEngine[Worker]):
    """See engine.base.Engine. Owns one thread, which owns the model."""

    def __init__(
        self,
        model: CpuModel,
        kernels: CpuKernels,
        grammars: GrammarCompiler,
        info: EngineInfo,
        torch_threads: int,
    ) -> None:
        self._kernels = kernels
        self._grammars = grammars
        worker = Worker(
            lambda job: generate(model, job.request, job.guide, info.context_tokens),
            max_running=info.max_batch,
            threads=torch_threads,
        )
        super().__init__(info, worker)

    @property
    def state(self) -> EngineState:
        return EngineState.READY if self._worker.alive else EngineState.LOST

    async def start(self, request: GenRequest) -> Job:
        guide = None
        if request.grammar is not None:
            guide = await asyncio.to_thread(self._grammars.compile, request.grammar)
        job = Job(request, guide)
        self._worker.add(job)
        return job

    def stats(self) -> dict[str, object]:
        return super().stats() | {"cpu": dict(self._info.details)}

    def release(self) -> None:
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
