"""Synthetic routing with the model's measured statistics, for models with random weights.

A random model's router settles on a few experts, so any cache looks perfect. This trace has what
was measured of GLM-5.3-Flash: log-normal popularity that sharpens with depth, and about a third of
a layer's picks repeated from the previous token. Deterministic by seed, so that two engines can be
driven with the same picks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

REPEAT_TARGET = 0.33
# Share of a layer's picks that its own router names from the previous layer's input (public study).
GUESS_RECALL = 0.654


@dataclass(frozen=True, slots=True)
class TraceSpec:
    """Shape and seed of a trace. first_layer is the model's index of MoE layer 0."""

    layers: int
    experts: int
    picks: int
    first_layer: int = 3
    steps: int = 512
    streams: int = 4
    prefill_rows: int = 8192
    seed: int = 0


def popularity_sigma(layer: int) -> float:
    """Standard deviation of log-popularity by model layer: 0.33 at 3, 0.9 at 7, 1.5 from 30 on."""
    if layer <= 7:
        return 0.33 + (0.9 - 0.33) * max(0, layer - 3) / 4
    return min(1.5, 0.9 + (1.5 - 0.9) * (layer - 7) / 23)


def make_decode_trace(
    spec: TraceSpec, log_popularity: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """int64 [steps, layers, streams, picks]; log_popularity float32 [layers, experts]."""
    shape = (spec.layers, spec.streams, spec.experts)
    trace = torch.empty((spec.steps, spec.layers, spec.streams, spec.picks), dtype=torch.int64)
    recent = torch.zeros(shape)
    previous: torch.Tensor | None = None
    keep = 0.20  # independent keeps; recency and popularity add the rest of REPEAT_TARGET
    for step in range(spec.steps):
        uniform = torch.rand(shape, generator=generator).clamp_(1e-12, 1 - 1e-7)
        score = log_popularity[:, None, :] - torch.log(-torch.log(uniform)) + 0.8 * recent
        if previous is not None:
            kept = torch.rand(previous.shape, generator=generator) < keep
            score.scatter_add_(2, previous, kept.float() * 1e6)
        picks = torch.topk(score, spec.picks, dim=2).indices
        trace[step] = picks
        recent = (recent * math.exp(-1 / 1.5)).scatter_(2, picks, 1.0)
        previous = picks
    return trace


class StepBuffers:
    """One step of a trace for a number of rows: written once per step, read by every layer.

    The memory stays the same, so that the views of it are made once. A write is enqueued behind the readers of
    the step before, on the compute stream. Look-ahead reads guesses on a stream of its own; every
    step waits for its decision, and what it read late would be another guess, never a wrong result.
    """

    def __init__(self, spec: TraceSpec, rows: int, device: torch.device) -> None:
        shape = (spec.layers, rows, spec.picks)
        self._rows = rows
        self._picks = torch.zeros(shape, dtype=torch.int64, device=device)
        shape = (spec.layers, spec.picks, rows)
        self._guesses = torch.zeros(shape, dtype=torch.int64, device=device)
        # A view made per call would cost more host time than the real model's router call.
        self.picks = list(self._picks)
        self.guesses = [guesses.flatten() for guesses in self._guesses]

    def write(self, picks: torch.Tensor, guesses: torch.Tensor) -> None:
        """Take a step over: picks [layers, streams, picks], guesses [layers, picks, streams]."""
        self._picks.copy_(picks[:, : self._rows])
        self._guesses.copy_(guesses[:, :, : self._rows])


class RoutingTrace:
    """A RouteOverride: returns the trace's picks for the router's. Layer 0 starts the next step.

    In decode steps they lie in fixed buffers (StepBuffers), which layer 0 writes for all layers: the real
    model spends no host time here, so that the trace may not either. A prompt's picks are written over the
    router's.
    """

    def __init__(self, spec: TraceSpec, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(spec.seed)
        sigma = torch.tensor([popularity_sigma(spec.first_layer + i) for i in range(spec.layers)])
        log_popularity = (
            torch.randn((spec.layers, spec.experts), generator=generator) * sigma[:, None]
        )
        self.decode = make_decode_trace(spec, log_popularity, generator).to(device)
        uniform = torch.rand((spec.layers, spec.prefill_rows, spec.experts), generator=generator)
        score = log_popularity[:, None, :] - torch.log(-torch.log(uniform.clamp_(1e-12, 1 - 1e-7)))
        self.prefill = torch.topk(score, spec.picks, dim=2).indices.to(device)
        real = self.decode.cpu()
        rows = torch.arange(spec.steps)[:, None] + 7 * torch.arange(spec.streams)
        wrong = self.prefill[:, rows % spec.prefill_rows].cpu().permute(1, 0, 2, 3)
        right = torch.rand(real.shape, generator=generator) < GUESS_RECALL
        # By rank, then by stream: the best guesses of all streams come first.
        self._guesses = torch.where(right, real, wrong).transpose(2, 3).contiguous().to(device)
        self._buffers = [StepBuffers(spec, rows, device) for rows in range(1, spec.streams + 1)]
        self._spec = spec
        self._step = -1

    def guesses_for(self, layer: int, rows: int) -> torch.Tensor:
        """What is guessed for a layer of a step of so many rows, with the recall measured on the real model
        (GUESS_RECALL), wrong ones by popularity: int64 [rows * picks], the best guesses of all streams first. Always the same memory, which holds the step that such a layer 0 began last."""
        return self._buffers[min(rows, self._spec.streams) - 1].guesses[layer]

    def restart(self) -> None:
        """Begin at the first step again."""
        self._step = -1

    def __call__(self, layer: int, picks: torch.Tensor) -> torch.Tensor:
        """The picks to use, int64 [rows, picks], in place of the router's. On the compute stream."""
        rows = picks.shape[0]
        if rows > self._spec.streams:
            return self._over_prompt(layer, picks)
        buffers = self._buffers[rows - 1]
        if layer == 0:
            self._step = (self._step + 1) % self._spec.steps
            buffers.write(self.decode[self._step], self._guesses[self._step])
        return buffers.picks[layer]

    def _over_prompt(self, layer: int, picks: torch.Tensor) -> torch.Tensor:
        source = self.prefill[layer]
        for start in range(0, picks.shape[0], source.shape[0]):
            part = picks[start : start + source.shape[0]]
            part.copy_(source[: part.shape[0]])
        return picks


class RoutingRecorder:
    """A RouteObserver: keeps the picks of decode steps with exactly `streams` rows, on the device, until
    `steps` are full.

    The result is what bench/replay_policies.py reads: int16 [steps, layers, streams, picks].
    """

    def __init__(self, steps: int, layers: int, streams: int) -> None:
        self._shape = (steps, layers, streams)
        self._picks: torch.Tensor | None = None
        self._step = -1
        self._wanted = False

    def __call__(self, layer: int, picks: torch.Tensor) -> None:
        """picks int64 [rows, picks] of one layer; layer 0 begins a step."""
        if layer == 0:
            self._wanted = picks.shape[0] == self._shape[2]
            self._step += self._wanted
        if not self._wanted or self.full:
            return
        if self._picks is None:
            shape = (*self._shape, picks.shape[1])
            self._picks = torch.full(shape, -1, dtype=torch.int16, device=picks.device)
        self._picks[self._step, layer].copy_(picks)

    @property
    def steps(self) -> int:
        """Decode steps with all streams that have begun."""
        return self._step + 1

    @property
    def full(self) -> bool:
        """True when a step came that has no room any more."""
        return self._step >= self._shape[0]

    def recorded(self) -> torch.Tensor:
        """The whole steps so far, on the host. Waits for the device. Raises ValueError without any."""
        if self._picks is None:
            raise ValueError(f"no decode step with {self._shape[2]} streams was seen")
        found = self._picks[: self._step + 1].cpu()
        return found[(found >= 0).flatten(1).all(1)]
