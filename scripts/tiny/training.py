"""The training loop: next-token loss on what the assistant writes, cosine schedule, held-out checks."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from glm53_server.tokenizer import Tokenizer

from .batches import Batch
from .fast import prepare
from .greedy import Case, accuracy
from .routing import LayerRouting, Router, measure

_WARM_UP = 0.02  # of the run
_FINAL_RATE = 0.02  # of the peak


@dataclass(frozen=True, slots=True)
class Limits:
    """A run ends at whichever comes first. The schedule follows the nearer end."""

    seconds: float
    steps: int | None = None

    def done(self, steps: int, seconds: float) -> float:
        """Share of the run that is over, 0 to 1."""
        by_steps = steps / self.steps if self.steps is not None else 0.0
        return min(1.0, max(by_steps, seconds / self.seconds))


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a run does besides its data."""

    limits: Limits
    peak_rate: float = 2e-3
    repeat_weight: float = 0.02
    check_every_s: float = 150.0
    answer_ids: int = 160  # of a held-out answer; the longest wanted ones are around 120
    compiled: bool = False


def rate(done: float, peak: float) -> float:
    """The learning rate when a share of the run is over: a short warm-up, then half a cosine."""
    if done < _WARM_UP:
        return peak * (done + 1e-3) / _WARM_UP
    fall = (1 + math.cos(math.pi * (done - _WARM_UP) / (1 - _WARM_UP))) / 2
    return peak * (_FINAL_RATE + (1 - _FINAL_RATE) * fall)


class Trainer:
    """Owns a Glm5NextForConditionalGeneration and its optimiser."""

    def __init__(self, model: Any, router: Router, recipe: Recipe) -> None:
        prepare(model, compiled=recipe.compiled)
        self.model, self._router, self._recipe = model, router, recipe
        self._device = model.lm_head.weight.device
        self.optimiser = _optimiser(model, self._device)
        self.steps, self.tokens = 0, 0

    def run(self, batches: Iterator[Batch], tokenizer: Tokenizer, checks: Sequence[Case]) -> None:
        """Train until the limits; prints the loss every 50 steps and the accuracy now and then."""
        start = checked = time.monotonic()
        while (done := self._recipe.limits.done(self.steps, time.monotonic() - start)) < 1:
            loss, movement = self.step(next(batches), rate(done, self._recipe.peak_rate))
            now = time.monotonic()
            if self.steps % 50 == 1:
                seen = f"{self.tokens / 1e6:.1f} M tokens, {self.tokens / (now - start):,.0f}/s"
                print(f"step {self.steps}  {now - start:.0f} s  loss {float(loss):.4f}  "
                      f"movement {float(movement):.4f}  {seen}", flush=True)  # fmt: skip
            if checks and now - checked > self._recipe.check_every_s:
                print("held-out", self.accuracy(tokenizer, checks), flush=True)
                checked = time.monotonic()

    def step(self, batch: Batch, learning_rate: float) -> tuple[torch.Tensor, torch.Tensor]:
        """One update. Returns the loss (nats per learned token) and the movement of the routers."""
        ids = torch.tensor(batch.ids).to(self._device, non_blocking=True)
        targets = torch.tensor(batch.targets).to(self._device, non_blocking=True)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        self._router.clear()
        loss = self.loss(ids, targets)
        movement = self._router.movement(len(ids))
        (loss + self._recipe.repeat_weight * movement).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.steps += 1
        self.tokens += ids.numel()
        return loss.detach(), movement.detach()

    def loss(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy over the learned positions; only these reach the output head."""
        with torch.autocast(
            self._device.type, dtype=torch.bfloat16, enabled=self._device.type == "cuda"
        ):
            hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state
            learned = targets.ne(-100)
            logits = self.model.lm_head(hidden[learned])
        return functional.cross_entropy(logits.float(), targets[learned])

    def accuracy(self, tokenizer: Tokenizer, asked: Sequence[Case]) -> dict[str, float]:
        """Share of right greedy answers by task."""
        self._router.watching = False
        shares = accuracy(self.model, tokenizer, asked, self._recipe.answer_ids)
        self._router.watching = True
        return {name: round(share, 3) for name, share in shares.items()}

    @torch.no_grad()
    def routing(self, batches: Iterator[Batch], pad: int, count: int = 8) -> list[LayerRouting]:
        """Popularity and repeats of each MoE layer over a few batches."""
        picks: list[list[torch.Tensor]] = [[] for _ in range(len(self._router))]
        used: list[torch.Tensor] = []
        for _ in range(count):
            batch = next(batches)
            ids = torch.tensor(batch.ids, device=self._device)
            self._router.clear()
            self.model.model(input_ids=ids, use_cache=False)
            used.append(ids.ne(pad).flatten())
            for layer, picked in zip(picks, self._router.picks, strict=True):
                # Rows end to end; the step from one row to the next is one in very many.
                layer.append(picked)
        joined = torch.cat(used)[None]
        experts = self._router.scores[0].shape[-1]
        return [measure(torch.cat(layer)[None], joined, experts) for layer in picks]


def _optimiser(model: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """AdamW. Only matrices decay; the embedding, norms and gates' vectors do not."""
    decayed, free = [], []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim >= 2 and "embed_tokens" not in name
        (decayed if matrix else free).append(parameter)
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": free, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=device.type == "cuda")


def close(batches: Iterator[Batch]) -> None:
    """Stop the processes behind a stream of batches."""
    with suppress(AttributeError):
        batches.close()  # pyright: ignore[reportAttributeAccessIssue]
