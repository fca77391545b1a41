"""The one file that touches exllamav3's model tree: load it, check it, attach to it.

Expert trellises never enter VRAM at load: the loader is handed device aliases of the pinned arena.
Afterwards residency is a matter of table contents, rewritten in place. Hooks (exl3_hooks) are instance
attributes of single modules, bound methods of one object per layer; `detach` restores them all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from glm53_kernels.cuda import CudaKernels
from glm53_server.engine.base import Progress
from glm53_server.engine.exl3_contract import UnsupportedExllamav3, check_static, package_path
from glm53_server.engine.exl3_dummy import DummyValues
from glm53_server.engine.exl3_hooks import LayerHook, PassHook, ResidualWatch
from glm53_server.engine.exl3_loader import ExpertLoader
from glm53_server.engine.exl3_tables import table_differences
from glm53_server.moe.arena import ExpertArena
from glm53_server.moe.cpu_tier import ExpertScales
from glm53_server.moe.expert_shape import ExpertShape
from glm53_server.moe.gpu_experts import ExpertPointers
from glm53_server.moe.layer import ExpertTiers
from glm53_server.moe.pressure import LEAST_FREE_BYTES
from glm53_server.moe.routers import Gate, Routers


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load. `cache_tokens` is a multiple of 256; `cpu_split` is stock's -mcs (stock only)."""

    directory: Path
    cache_tokens: int
    max_batch: int
    chunk_tokens: int
    device: str = "cuda:0"
    fill_threads: int = 8
    cpu_split: int = 0
    cpu_split_threads: int | None = None
    dummy: DummyValues | None = None


@dataclass(slots=True)
class LoadedModel:
    """exllamav3's objects of one loaded text model, plus what we learned on the way."""

    model: Any
    config: Any
    cache: Any
    tokenizer: Any
    device: torch.device
    arena: ExpertArena | None
    activation_bytes: int = 0
    phase_s: dict[str, float] = field(default_factory=dict[str, float])
    attached: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])


class _Phases:
    """Seconds per phase of a load, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def done(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._since
        self._since = now


def load_model(
    options: LoadOptions, kernels: CudaKernels | None, progress: Progress
) -> LoadedModel:
    """Load a text model on one GPU. With kernels: experts in a pinned arena; without: all in VRAM.

    Raises UnsupportedExllamav3, PinRefused, OSError, or what exllamav3 raises.
    """
    check_static(package_path())
    phases = _Phases()
    from exllamav3 import Cache, Config, Model, Tokenizer

    config = Config.from_directory(str(options.directory))
    phases.done("import")
    if options.cpu_split:
        config.infer_params.moe_cpu_split = options.cpu_split
        config.infer_params.moe_cpu_threads = options.cpu_split_threads
    loader = ExpertLoader(config, options.dummy, options.device)
    arena: ExpertArena | None = None
    with ExitStack() as undo:
        if kernels is not None:
            arena = ExpertArena(loader.layout(), kernels, options.fill_threads)
            undo.callback(arena.close)  # a load that fails leaves nothing pinned
            loader.use_arena(arena)
            arena.start_filling(loader.filler(), lambda done, all_: progress("experts", done, all_))
        config.stc.get_tensor = loader.get_tensor
        model = Model.from_config(config)
        cache = Cache(model, max_num_tokens=options.cache_tokens, max_batch_size=options.max_batch)
        model.load(device=options.device, max_chunk_size=options.chunk_tokens)
        if arena is not None:
            for row in range(arena.layout.layers):
                arena.wait_layer(row)
            phases.seconds |= {
                "touch": arena.touch_s, "fill": arena.fill_s, "pin": arena.pin_s, "arena": arena.ready_s, "arena_wait": arena.wait_s,
            }  # fmt: skip
        phases.done("load")
        tokenizer = Tokenizer.from_config(config)
        device = torch.device(options.device)
        loaded = LoadedModel(model, config, cache, tokenizer, device, arena, phase_s=phases.seconds)
        check_loaded(loaded)
        progress("warmup", 0, 1)
        loaded.activation_bytes = _warm_up(loaded, options)
        undo.pop_all()
    phases.done("warmup")
    progress("warmup", 1, 1)
    return loaded


def _warm_up(loaded: LoadedModel, options: LoadOptions) -> int:
    """Run exllamav3's own warm-up; returns the peak of activations in bytes."""
    torch.cuda.synchronize(loaded.device)
    torch.cuda.reset_peak_memory_stats(loaded.device)
    resting = torch.cuda.memory_allocated(loaded.device)
    failed = loaded.model.warmup(
        cache=loaded.cache,
        max_chunk_size=options.chunk_tokens,
        max_batch_size=min(8, options.max_batch),
        max_q_len=1,
    )
    torch.cuda.synchronize(loaded.device)
    if failed:
        words = f"warm-up passes failed: {', '.join(failed)}"
        torch.cuda.empty_cache()
        free_bytes, _ = torch.cuda.mem_get_info(loaded.device)
        if free_bytes < LEAST_FREE_BYTES:  # exllamav3 prints what a pass raised and goes on
            raise torch.OutOfMemoryError(f"{words}: out of memory, {free_bytes >> 20} MiB are free")
        raise RuntimeError(words)
    return torch.cuda.max_memory_allocated(loaded.device) - resting


def moe_blocks(loaded: LoadedModel) -> list[Any]:
    """exllamav3's sparse-MoE modules in layer order."""
    from exllamav3.modules.block_sparse_mlp import BlockSparseMLP

    found = [getattr(module, "mlp", None) for module in loaded.model.modules]
    return [m for m in found if type(m) is BlockSparseMLP]


def tables_of(block: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gate, up and down trellis pointer tables of one block."""
    return (
        block.multi_gate.ptrs_trellis,
        block.multi_up.ptrs_trellis,
        block.multi_down.ptrs_trellis,
    )


def expert_pointers(block: Any) -> ExpertPointers:
    """All nine pointer tables of one block."""

    def three(linears: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return linears.ptrs_trellis, linears.ptrs_suh, linears.ptrs_svh

    return ExpertPointers(three(block.multi_gate), three(block.multi_up), three(block.multi_down))


def expert_scales(block: Any) -> ExpertScales:
    """Host copies of one block's suh and svh vectors: fp16 [experts, features]."""

    def stacked(linears: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        suh = torch.stack([linear.inner.suh for linear in linears])
        svh = torch.stack([linear.inner.svh for linear in linears])
        return suh.cpu(), svh.cpu()

    return ExpertScales(stacked(block.gates), stacked(block.ups), stacked(block.downs))


def expert_shape(block: Any) -> ExpertShape:
    """Sizes, bits and activation clamp of one block's experts."""
    return ExpertShape(
        hidden=block.multi_gate.in_features,
        intermediate=block.multi_gate.out_features,
        bits=(block.multi_gate.K, block.multi_up.K, block.multi_down.K),
        act_limit=float(block.act_limit),
        picks_per_row=block.num_experts_per_tok,
    )


def routers_of(loaded: LoadedModel) -> Routers:
    """All blocks' routers, for the look-ahead.

    Call it after the warm-up: the transposed gates and the biases are built lazily, by the first pass.
    """
    gates: list[Gate] = []
    for block in moe_blocks(loaded):
        config, transposed = block.routing_cfg, block.routing_cfg.gate_tensor_t
        weight = config.gate_tensor if transposed is None else transposed.T
        gates.append(Gate(weight, config.e_score_bias_h, config.num_experts_per_tok))
    return Routers(gates)


def check_loaded(loaded: LoadedModel) -> None:
    """The contract after load: block types, tiers and table contents are what the hooks rely on."""
    from exllamav3.modules.block_sparse_mlp_routing import routing_dots

    blocks = moe_blocks(loaded)
    wrong: list[str] = []
    if not blocks:
        wrong.append("the model has no sparse-MoE block")
    for row, block in enumerate(blocks):
        if block.routing_fn is not routing_dots:
            wrong.append(f"{block.key}: the router is not routing_dots")
        if loaded.arena is None:
            continue
        if block.bc is None or not block.support_fused or not block.mtile_ok:
            wrong.append(f"{block.key}: a fused kernel tier is not available")
        if (
            block.cpu_offload
            or block.cpu_split_first is not None
            or block.experts_cfg.min_expert != -1
        ):
            wrong.append(f"{block.key}: stock CPU offload or a split is active")
        wrong += table_differences(loaded.arena, row, block.key, tables_of(block))
    if wrong:
        raise UnsupportedExllamav3(wrong)


def watch_residual(loaded: LoadedModel, flag: torch.Tensor) -> None:
    """Set `flag` (bool [1], device) whenever the residual stream of a forward pass holds a NaN."""
    norm = loaded.model.modules[-2]
    norm.forward = ResidualWatch(norm.forward, flag).forward
    loaded.attached.append(lambda: delattr(norm, "forward"))


def clear_cache(loaded: LoadedModel) -> None:
    """Zero the K/V pages: a masked read of a stale NaN is a NaN."""
    with torch.inference_mode():
        for layer in loaded.cache.layers.values():
            for tensor in layer.get_tensors():
                tensor.zero_()


def attach(loaded: LoadedModel, tiers: ExpertTiers) -> None:
    """Attach the tiers to every MoE block. The model must start with a dense block."""
    blocks = moe_blocks(loaded)
    dense = next(
        (
            m.mlp
            for m in loaded.model.modules
            if getattr(m, "mlp", None) is not None and m.mlp not in blocks
        ),
        None,
    )
    if dense is None:
        raise UnsupportedExllamav3(["the model has no dense block before its first MoE block"])
    pass_hook = PassHook(dense.forward, tiers)
    dense.forward = pass_hook.forward
    loaded.attached.append(lambda: delattr(dense, "forward"))
    for layer, block in enumerate(blocks):
        stock_route = block.routing_fn
        hook = LayerHook(stock_route, block.cpu_split_combine, layer, tiers)
        block.routing_fn = hook.routing_fn
        block.cpu_split_combine = hook.cpu_split_combine
        loaded.attached.append(lambda b=block, r=stock_route: setattr(b, "routing_fn", r))
        loaded.attached.append(lambda b=block: delattr(b, "cpu_split_combine"))


def detach(loaded: LoadedModel) -> None:
    """Restore every attribute that attach changed."""
    for undo in reversed(loaded.attached):
        undo()
    loaded.attached.clear()
