"""The one file that touches exllamav3's model tree: load it, check it, attach to it.

Expert trellises never enter VRAM at load: the loader is handed device aliases of the pinned arena.
Afterwards residency is a matter of table contents, rewritten in place. Hooks are instance attributes
of single modules, bound methods of one object per layer; `detach` restores them all.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from glm53_kernels.cuda import CudaKernels
from glm53_server.engine.exl3_contract import UnsupportedExllamav3, check_static
from glm53_server.engine.exl3_dummy import DummyValues
from glm53_server.moe.arena import ExpertArena, FillLayer, RecordLayout
from glm53_server.moe.layer import ExpertTiers

Progress = Callable[[str, int, int], None]

EXPERT_KEY = re.compile(r"^(.+\.layers\.(\d+)\.mlp)\.experts\.(\d+)\.(gate|up|down)_proj\.trellis$")
PARTS = {"gate": 0, "up": 1, "down": 2}
READ_BYTES = 8 << 20


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


def package_path() -> Path:
    """The installed exllamav3's folder, found without importing it."""
    import importlib.util

    spec = importlib.util.find_spec("exllamav3")
    if spec is None or spec.origin is None:
        raise UnsupportedExllamav3(["exllamav3 is not installed"])
    return Path(spec.origin).parent


def _expert_keys(config: Any) -> dict[tuple[int, int, int], str]:
    """(layer, expert, part) -> tensor key of the text model's routed experts, MTP excluded."""
    keys: dict[tuple[int, int, int], str] = {}
    for key in config.stc.tensor_file_map:
        found = EXPERT_KEY.match(key)
        if found and int(found[2]) < config.num_hidden_layers:
            keys[int(found[2]), int(found[3]), PARTS[found[4]]] = key
    return keys


class ExpertLoader:
    """Stands in for one loader object's get_tensor: experts from the arena, the rest as before."""

    def __init__(self, config: Any, options: LoadOptions, arena: ExpertArena | None) -> None:
        self._stc = config.stc
        self._stock = config.stc.get_tensor
        self._dummy = options.dummy
        self._arena = arena
        self._index = torch.device(options.device).index or 0
        self.keys = _expert_keys(config)
        self.layers = sorted({layer for layer, _, _ in self.keys})
        self._position = {key: where for where, key in self.keys.items()}

    def layout(self) -> RecordLayout:
        """The record layout shared by all experts. Raises UnsupportedExllamav3 when they differ."""
        sizes = {part: set() for part in range(3)}
        for (_, _, part), key in self.keys.items():
            sizes[part].add(self._stc.get_tensor_size(key))
        experts = max(expert for _, expert, _ in self.keys) + 1
        if any(len(s) != 1 for s in sizes.values()) or len(self.keys) != 3 * experts * len(
            self.layers
        ):
            raise UnsupportedExllamav3(
                ["experts of this checkpoint differ in size or some are missing"]
            )
        gate, up, down = (next(iter(sizes[part])) for part in range(3))
        return RecordLayout(len(self.layers), experts, gate, up, down)

    def use_arena(self, arena: ExpertArena) -> None:
        self._arena = arena

    def get_tensor(
        self, key: str, device: Any = None, *args: Any, **kwargs: Any
    ) -> torch.Tensor | None:
        """SafetensorsCollection.get_tensor's contract, with expert trellises as views of the arena."""
        where = self._position.get(key) if self._arena is not None else None
        if where is not None and device is not None and torch.device(device).type == "cuda":
            return self._arena_view(key, *where)
        if self._dummy is not None and key in self._dummy.tensors:
            return self._dummy_tensor(key, device, *args, **kwargs)
        return self._stock(key, device, *args, **kwargs)

    def _arena_view(self, key: str, layer: int, expert: int, part: int) -> torch.Tensor:
        from exllamav3.ext import exllamav3_ext as ext

        assert self._arena is not None
        row = self.layers.index(layer)
        self._arena.wait_layer(row)
        header = self._stc.file_headers[self._stc.tensor_file_map[key]][key]
        view = self._arena.part_view(row, expert, part).view(torch.int16).view(header["shape"])
        return ext.pinned_cuda_view(view, self._index)

    def _dummy_tensor(
        self, key: str, device: Any = None, optional: bool = False, allow_bf16: bool = False,
        float2half: bool = False, no_defer: bool = False, transpose: bool = False,
        pad_to: tuple[int, ...] | None = None, fidx: int | None = None,
    ) -> torch.Tensor:  # fmt: skip
        del optional, no_defer
        assert self._dummy is not None
        if fidx is not None:
            raise UnsupportedExllamav3([f"dummy weights cannot serve the batched tensor {key}"])
        tensor = self._dummy.tensor(key).to(device if device is not None else "cpu")
        if (tensor.dtype == torch.bfloat16 and not allow_bf16) or (
            tensor.dtype == torch.float and float2half
        ):
            tensor = tensor.half()
        if transpose and tensor.dim():
            tensor = tensor.T
        if pad_to is not None and tuple(pad_to) != tuple(tensor.shape):
            padded = torch.zeros(pad_to, dtype=tensor.dtype, device=tensor.device)
            padded[tuple(slice(0, s) for s in tensor.shape)].copy_(tensor)
            tensor = padded
        # A tensor of its own: the pools behind dummy values must never be written through.
        return tensor.contiguous().clone()

    def filler(self) -> FillLayer:
        """The function that fills one layer of the arena, from the files or from dummy values."""
        return self._fill_dummy if self._dummy is not None else self._fill_from_files

    def _targets(self, row: int, destination: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        assert self._arena is not None
        layout = self._arena.layout
        sizes = (layout.gate_bytes, layout.up_bytes, layout.down_bytes)
        result: list[tuple[str, torch.Tensor]] = []
        for expert in range(layout.experts):
            for part in range(3):
                start = expert * layout.record_bytes + layout.offsets[part]
                key = self.keys[self.layers[row], expert, part]
                result.append((key, destination[start : start + sizes[part]]))
        return result

    def _fill_dummy(self, row: int, destination: torch.Tensor, pool: ThreadPoolExecutor) -> None:
        dummy = self._dummy
        assert dummy is not None

        def copy(target: tuple[str, torch.Tensor]) -> None:
            key, view = target
            view.copy_(dummy.trellis_bytes(key, view.numel()))

        list(pool.map(copy, self._targets(row, destination), chunksize=8))

    def _fill_from_files(
        self, row: int, destination: torch.Tensor, pool: ThreadPoolExecutor
    ) -> None:
        def read(target: tuple[str, torch.Tensor]) -> None:
            key, view = target
            filename = self._stc.tensor_file_map[key]
            header = self._stc.file_headers[filename]
            offset = header["_header_offset"] + header[key]["data_offsets"][0]
            read_into(Path(filename), offset, view)

        list(pool.map(read, self._targets(row, destination), chunksize=8))


def read_into(path: Path, offset: int, destination: torch.Tensor) -> None:
    """Read destination.numel() bytes at `offset` of a file into a uint8 tensor. Raises OSError."""
    import ctypes

    size = destination.numel()
    buffer = (ctypes.c_char * size).from_address(destination.data_ptr())
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        view = memoryview(buffer).cast("B")
        done = 0
        while done < size:
            count = file.readinto(view[done : done + READ_BYTES])
            if not count:
                raise OSError(f"{path}: ends at byte {offset + done}, {offset + size} needed")
            done += count


def load_model(
    options: LoadOptions, kernels: CudaKernels | None, progress: Progress
) -> LoadedModel:
    """Load a text model on one GPU. With kernels: experts in a pinned arena; without: all in VRAM.

    Raises UnsupportedExllamav3, PinRefused, OSError, or what exllamav3 raises.
    """
    check_static(package_path())
    started = time.perf_counter()
    from exllamav3 import Cache, Config, Model, Tokenizer

    phases: dict[str, float] = {}

    def phase_done(name: str) -> None:
        nonlocal started
        now = time.perf_counter()
        phases[name] = now - started
        started = now

    config = Config.from_directory(str(options.directory))
    phase_done("import")
    if options.cpu_split:
        config.infer_params.moe_cpu_split = options.cpu_split
        config.infer_params.moe_cpu_threads = options.cpu_split_threads
    loader = ExpertLoader(config, options, None)
    arena: ExpertArena | None = None
    if kernels is not None:
        arena = ExpertArena(loader.layout(), kernels, options.fill_threads)
        loader.use_arena(arena)
        arena.start_filling(loader.filler(), lambda done, total: progress("experts", done, total))
    config.stc.get_tensor = loader.get_tensor
    model = Model.from_config(config)
    cache = Cache(model, max_num_tokens=options.cache_tokens, max_batch_size=options.max_batch)
    model.load(
        device=options.device,
        callback=lambda done, total: progress("weights", done, total),
        max_chunk_size=options.chunk_tokens,
    )
    if arena is not None:
        for row in range(arena.layout.layers):
            arena.wait_layer(row)
        phases["fill"], phases["pin"] = arena.fill_s, arena.pin_s
    phase_done("load")
    device = torch.device(options.device)
    loaded = LoadedModel(
        model, config, cache, Tokenizer.from_config(config), device, arena, phase_s=phases
    )
    check_loaded(loaded)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    resting = torch.cuda.memory_allocated(device)
    progress("warmup", 0, 1)
    model.warmup(
        cache=cache,
        max_chunk_size=options.chunk_tokens,
        max_batch_size=min(8, options.max_batch),
        max_q_len=1,
    )
    torch.cuda.synchronize(device)
    loaded.activation_bytes = torch.cuda.max_memory_allocated(device) - resting
    phase_done("warmup")
    progress("warmup", 1, 1)
    return loaded


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
        wrong += _table_differences(loaded.arena, row, block)
    if wrong:
        raise UnsupportedExllamav3(wrong)


def _table_differences(arena: ExpertArena, row: int, block: Any) -> list[str]:
    layout = arena.layout
    first = arena.home + row * layout.layer_bytes
    wrong: list[str] = []
    for part, table in enumerate(tables_of(block)):
        expected = [
            first + e * layout.record_bytes + layout.offsets[part] for e in range(layout.experts)
        ]
        if table.dtype != torch.int64 or not table.is_cuda or not table.is_contiguous():
            wrong.append(f"{block.key}: pointer table {part} has another layout")
        elif table.tolist() != expected:
            wrong.append(f"{block.key}: pointer table {part} does not point into the arena")
    return wrong


class LayerHook:
    """The attributes of one MoE block: routing_fn and cpu_split_combine, as bound methods."""

    __slots__ = ("_combine", "_layer", "_route", "_tiers")

    def __init__(self, block: Any, layer: int, tiers: ExpertTiers) -> None:
        self._layer = layer
        self._tiers = tiers
        self._route = block.routing_fn
        self._combine = block.cpu_split_combine

    def routing_fn(self, rows: int, cfg: Any, y: torch.Tensor, params: dict[str, Any]) -> Any:
        picks, weights = self._route(rows, cfg, y, params)
        if not params.get("activate_all_experts"):
            self._tiers.on_route(self._layer, picks)
        return picks, weights

    def cpu_split_combine(
        self, final: torch.Tensor, partial: Any, pending: Any, shape: Any
    ) -> torch.Tensor:
        final = self._combine(final, partial, pending, shape)
        self._tiers.on_combine(self._layer, final.numel() // final.shape[-1])
        return final


class PassHook:
    """The forward of the first block's dense MLP: where a forward pass announces itself."""

    __slots__ = ("_forward", "_tiers")

    def __init__(self, mlp: Any, tiers: ExpertTiers) -> None:
        self._forward = mlp.forward
        self._tiers = tiers

    def forward(
        self, x: torch.Tensor, params: dict[str, Any], out_dtype: Any = None
    ) -> torch.Tensor:
        self._tiers.on_pass(x.numel() // x.shape[-1], cache_only="prefill" in params)
        return self._forward(x, params, out_dtype)


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
    pass_hook = PassHook(dense, tiers)
    dense.forward = pass_hook.forward
    loaded.attached.append(lambda: delattr(dense, "forward"))
    for layer, block in enumerate(blocks):
        hook = LayerHook(block, layer, tiers)
        stock_route = block.routing_fn
        block.routing_fn = hook.routing_fn
        block.cpu_split_combine = hook.cpu_split_combine
        loaded.attached.append(lambda b=block, r=stock_route: setattr(b, "routing_fn", r))
        loaded.attached.append(lambda b=block: delattr(b, "cpu_split_combine"))


def detach(loaded: LoadedModel) -> None:
    """Restore every attribute that attach changed."""
    for undo in reversed(loaded.attached):
        undo()
    loaded.attached.clear()
