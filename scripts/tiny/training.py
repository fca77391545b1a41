"""The training loop: next-token loss on what the assistant writes, cosine schedule, held-out checks.

A run is not lost: before it starts, every compiled piece is tried and left out where it fails; a step
whose gradient is not finite changes nothing; the caller is handed the model to save at every check.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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


def rate(done: float, peak: float) -> float:
    """The learning rate when a share of the run is over: a short warm-up, then half a cosine."""
    if done < _WARM_UP:
        return peak * (done + 1e-3) / _WARM_UP
    fall = (1 + math.cos(math.pi * (done - _WARM_UP) / (1 - _WARM_UP))) / 2
    return peak * (_FINAL_RATE + (1 - _FINAL_RATE) * fall)


class Trainer:
    """Owns a Glm5NextForConditionalGeneration and its optimiser."""

    def __init__(self, model: Any, router: Router, recipe: Recipe) -> None:
        self._forms = prepare(model)
        self.model, self._router, self._recipe = model, router, recipe
        self._device = model.lm_head.weight.device
        if self._device.type == "cuda":
            torch.set_float32_matmul_precision("high")
            # cuDNN's attention takes heads this wide with a mask, and then has no gradient for them.
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.optimiser = _optimiser(model, self._device)
        self.steps, self.tokens, self.loss_now = 0, 0, math.nan

    def compile(self, batch: Batch, budget_s: float) -> None:
        """Compile the pieces of the training forms, one after another; one that fails stays as it is, and
        so do those whose turn comes after `budget_s`.
        """
        wanted, begun = self._tried(batch), time.monotonic()
        for piece in self._forms:
            if (start := time.monotonic()) - begun > budget_s:
                print(f"compiling {piece.name}: no time", flush=True)
                continue
            piece.compile()
            try:
                found = self._tried(batch)
                trouble = "" if abs(found - wanted) < 0.02 else f"loss {found}, not {wanted}"
            except Exception as err:  # noqa: BLE001 - a compiler fails in many ways, and none matters
                trouble = f"{type(err).__name__}: {str(err)[:300]}"
            if trouble:
                piece.give_up()
            print(f"compiling {piece.name}: {trouble or 'done'}, {time.monotonic() - start:.1f} s",
                  flush=True)  # fmt: skip
        self.optimiser.zero_grad(set_to_none=True)

    def _tried(self, batch: Batch) -> float:
        self._router.clear()
        loss = self.loss(batch)
        loss.backward()
        return float(loss.detach())

    def run(
        self, batches: Iterator[Batch], start: float, check: Callable[[], None] | None = None
    ) -> None:
        """Train until the limits, which count from `start` on the monotonic clock. Prints the loss every
        50 steps, and calls `check` now and then.
        """
        begun = checked = time.monotonic()
        whole = self._recipe.limits
        limits = Limits(max(1.0, whole.seconds - (begun - start)), whole.steps)
        while (done := limits.done(self.steps, time.monotonic() - begun)) < 1:
            loss, movement = self.step(next(batches), rate(done, self._recipe.peak_rate))
            if self.steps % 50 == 1:
                self.loss_now = float(loss)  # waits for the device
                now = time.monotonic()
                print(f"step {self.steps}  {now - start:.0f} s  loss {self.loss_now:.4f}  "
                      f"movement {float(movement):.4f}  {self.tokens / 1e6:.1f} M tokens, "
                      f"{self.tokens / (now - begun):,.0f}/s", flush=True)  # fmt: skip
            if check and time.monotonic() - checked > self._recipe.check_every_s:
                check()
                checked = time.monotonic()

    def step(self, batch: Batch, learning_rate: float) -> tuple[torch.Tensor, torch.Tensor]:
        """One update. Returns the loss (nats per learned token) and the movement of the routers."""
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        self._router.clear()
        loss = self.loss(batch)
        movement = self._router.movement(len(batch.ids))
        (loss + self._recipe.repeat_weight * movement).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._update(norm.isfinite())
        self.steps += 1
        self.tokens += int(batch.used.sum())
        return loss.detach(), movement.detach()

    def _update(self, sound: torch.Tensor) -> None:
        if self._device.type == "cuda":  # the fused form asks on the device, without waiting for it
            self.optimiser.found_inf = (~sound).float()  # pyright: ignore[reportAttributeAccessIssue]
            self.optimiser.step()
        elif sound:
            self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def loss(self, batch: Batch) -> torch.Tensor:
        """Mean cross-entropy over the learned positions; only these reach the output head."""
        ids, conversations = self._there(batch.ids).long(), self._there(batch.conversations)
        learned = np.flatnonzero(batch.targets != -100)
        targets = self._there(batch.targets.ravel()[learned]).long()
        self._forms.arrange(conversations)
        with self._autocast():
            hidden = self.model.model(
                input_ids=ids, attention_mask=self._there(batch.used), use_cache=False
            ).last_hidden_state
            logits = self.model.lm_head(hidden.flatten(0, 1).index_select(0, self._there(learned)))
        self._forms.arrange(None)
        return functional.cross_entropy(logits.float(), targets)

    def _there(self, array: NDArray[Any]) -> torch.Tensor:
        there = torch.from_numpy(array)
        if self._device.type == "cuda":
            there = there.pin_memory()
        return there.to(self._device, non_blocking=True)

    def _autocast(self) -> torch.autocast:
        kind = self._device.type
        return torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda")

    def accuracy(self, tokenizer: Tokenizer, asked: Sequence[Case]) -> dict[str, float]:
        """Share of right greedy answers by task."""
        self._router.watching = False
        shares = accuracy(self.model, tokenizer, asked, self._recipe.answer_ids)
        self._router.watching = True
        return {name: round(share, 3) for name, share in shares.items()}

    @torch.no_grad()
    def routing(self, batches: Iterator[Batch], count: int = 8) -> list[LayerRouting]:
        """Popularity and repeats of each MoE layer over a few batches."""
        picks: list[list[torch.Tensor]] = [[] for _ in range(len(self._router))]
        used: list[torch.Tensor] = []
        for _ in range(count):
            batch = next(batches)
            self._router.clear()
            self.loss(batch)
            used.append(torch.from_numpy(batch.used).flatten())
            for layer, picked in zip(picks, self._router.picks, strict=True):
                # Rows end to end; the step from one row to the next is one in very many.
                layer.append(picked.cpu())
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
