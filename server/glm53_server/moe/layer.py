"""What happens around one forward pass and around each MoE layer in it: the policy of the tiers.

decode (rows <= 8)     admit this layer's misses, then the stock kernels read slots
prefill (many rows)    stage one layer ahead, then the stock kernels read the staging buffer
in between             read in place over the link: fewer bytes than streaming whole layers
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from glm53_server.moe.cpu_tier import CpuLane
from glm53_server.moe.lookahead import Lookahead
from glm53_server.moe.prefill import PrefillStager
from glm53_server.moe.residency import Residency

DECODE_ROWS = 8  # exllamav3's MAX_BSZN: the decode kernels take up to this many rows

RouteOverride = Callable[[int, torch.Tensor], torch.Tensor]
"""override(layer, picks): the picks to use, int64 [rows, picks] (synthetic routing of dummy models)."""
RouteObserver = Callable[[int, torch.Tensor], None]
"""observer(layer, picks): sees the picks and changes nothing."""


class ExpertTiers:
    """The hooks the adapter calls. One object per model, engine thread only.

    `hold_prefill` keeps the cache in its prefill state across decode steps while some job still has
    prompt to ingest; `verify_each_step` is the debug mode that checks every slot after every step.
    """

    def __init__(
        self,
        residency: Residency,
        stager: PrefillStager | None,
        *,
        stage_rows: int,
        route_override: RouteOverride | None = None,
        cpu_lane: CpuLane | None = None,
    ) -> None:
        self.residency = residency
        self.stager = stager
        self.cpu_lane = cpu_lane
        self.lookahead: Lookahead | None = None
        self.recorder: RouteObserver | None = None  # of decode steps
        self.heat_file: Path | None = None
        self._steps = [residency.new_step(layer) for layer in range(residency.layout.layers)]
        self.hold_prefill = False
        self.verify_each_step = False
        self._prefilling = False
        self._stage_rows = stage_rows
        self._route_override = route_override
        self.decode_steps = 0
        self.in_place_passes = 0

    def on_pass(self, rows: int, *, cache_only: bool) -> None:
        """A forward pass begins, before its first MoE layer. cache_only: a prefill of the cache, which
        skips the last MoE; however few its rows, the CPU lane stays out, so that its bits are stock's."""
        self._prefilling = cache_only
        self._join()
        if self.lookahead is not None:
            self.lookahead.new_pass(0 if cache_only or rows > DECODE_ROWS else rows)
        stager = self.stager
        if stager is None:
            return
        stager.end_pass()
        if rows > DECODE_ROWS:
            self.drain()
            wanted = self._stage_rows if not stager.in_prefill else self._stage_rows // 4
            if rows >= wanted and stager.capacity:
                stager.begin_pass(skip_last=cache_only)
            else:
                self.in_place_passes += 1
            return
        self.decode_steps += 1
        if stager.in_prefill and not self.hold_prefill:
            stager.leave()
        stager.poll_refill()
        if self.cpu_lane is not None:
            self.cpu_lane.after_step(self.residency)
        if self.verify_each_step:
            self.residency.verify()

    def _join(self) -> None:
        if self.cpu_lane is not None and self.cpu_lane.experts is not None:
            self.cpu_lane.experts.join()

    def drain(self) -> None:
        """Wait for copies under way, before slots are given away or memory moves."""
        self._join()
        if self.lookahead is not None:
            self.lookahead.drain()

    def on_route(
        self, layer: int, picks: torch.Tensor, weights: torch.Tensor, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Routing of one layer is known: picks int64 and weights fp16 [rows, experts_per_token] on the
        device, x fp16 [rows, hidden]. Returns the picks and weights that stock's kernels shall use: weights
        are 0 where somebody else computes."""
        if self._route_override is not None:
            picks = self._route_override(layer, picks)
        if picks.shape[0] <= DECODE_ROWS:
            if self.recorder is not None and not self._prefilling:
                self.recorder(layer, picks)
            return picks, self._decode(layer, picks, weights, x)
        if self.stager is not None and self.stager.passing:
            self.stager.before_layer(layer)
        return picks, weights

    def _decode(
        self, layer: int, picks: torch.Tensor, weights: torch.Tensor, x: torch.Tensor
    ) -> torch.Tensor:
        """Decide and copy; returns the weights for stock's kernels."""
        step, ahead, lane = self._steps[layer], self.lookahead, self.cpu_lane
        step.picks, step.num_picks = picks.data_ptr(), picks.numel()
        step.mailbox = step.runs = 0
        if lane is not None and not self._prefilling:
            lane.fill(step, x, weights)
        if lane is not None and step.runs:
            weights = lane.begin(step, x, picks, weights)
        else:
            if ahead is not None:
                ahead.before_step()
            self.residency.decode_step(step)
            if ahead is not None:
                ahead.copies_enqueued()
        if ahead is not None:
            ahead.after_step(layer, x, picks)
        return weights

    def on_combine(self, layer: int, final: torch.Tensor) -> None:
        """The layer's expert kernels are enqueued; final is their sum, float32 [..., hidden]."""
        rows = final.numel() // final.shape[-1]
        if rows <= DECODE_ROWS:
            if self.cpu_lane is not None:
                self.cpu_lane.combine(self.residency, self._steps[layer], final)
        elif self.stager is not None:
            self.stager.after_layer()
