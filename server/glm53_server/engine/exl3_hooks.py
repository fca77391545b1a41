"""What runs in place of single methods of exllamav3's modules: each is given the stock one and calls it.

Only `exl3_model` puts them there and takes them away; nothing here reaches into the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from glm53_server.moe.layer import ExpertTiers

Stock = Callable[..., Any]


class LayerHook:
    """The attributes of one MoE block: routing_fn and cpu_split_combine, as bound methods."""

    __slots__ = ("_combine", "_layer", "_route", "_tiers")

    def __init__(self, route: Stock, combine: Stock, layer: int, tiers: ExpertTiers) -> None:
        self._layer = layer
        self._tiers = tiers
        self._route = route
        self._combine = combine

    def routing_fn(self, rows: int, cfg: Any, y: torch.Tensor, params: dict[str, Any]) -> Any:
        picks, weights = self._route(rows, cfg, y, params)
        if not params.get("activate_all_experts"):
            return self._tiers.on_route(self._layer, picks, weights, y)
        return picks, weights

    def cpu_split_combine(
        self, final: torch.Tensor, partial: Any, pending: Any, shape: Any
    ) -> torch.Tensor:
        final = self._combine(final, partial, pending, shape)
        self._tiers.on_combine(self._layer, final)
        return final


class PassHook:
    """The forward of the first block's dense MLP: where a forward pass announces itself."""

    __slots__ = ("_forward", "_tiers")

    def __init__(self, forward: Stock, tiers: ExpertTiers) -> None:
        self._forward = forward
        self._tiers = tiers

    def forward(
        self, x: torch.Tensor, params: dict[str, Any], out_dtype: Any = None
    ) -> torch.Tensor:
        self._tiers.on_pass(x.numel() // x.shape[-1], cache_only="prefill" in params)
        return self._forward(x, params, out_dtype)


class ResidualWatch:
    """The forward of the final norm: raises a flag on the device when its input has a NaN.

    Kernels after it clamp and quantise, so that a NaN would come out as fluent nonsense.
    """

    __slots__ = ("_forward", "flag")

    def __init__(self, forward: Stock, flag: torch.Tensor) -> None:
        self._forward = forward
        self.flag = flag

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        torch.logical_or(self.flag, torch.isnan(x).any(), out=self.flag)
        return self._forward(x, *args, **kwargs)
