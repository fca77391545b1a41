"""The training loop: next-token loss on what the assistant writes, cosine schedule, held-out checks.

A run is not lost: before it starts, every compiled piece and the recorded step are tried and left out
where they fail; a step whose gradient is not finite changes nothing; the caller is handed the model to
save at every check.
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
from torch import Tensor, nn

from glm53_server.tokenizer import Tokenizer

from .batches import Batch
from .fast import prepare
from .greedy import Case, accuracy
from .recorded import Recorded
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
        self._held = torch.zeros((), device=self._device)  # 1: updates change nothing
        self._recorded: Recorded | None = None
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

    def record(self, batch: Batch) -> None:
        """Make the whole step one CUDA graph, for batches of this shape. Where that fails or gives
        something else, steps stay as they are. Nothing is learned here.
        """
        start, given = time.monotonic(), _packed(batch)
        self._held.fill_(1)
        self._set_rate(0.0)
        try:
            wanted = [float(x) for x in self._learn(given.to(self._device))]
            recorded = Recorded(self._learn, given.to(self._device))
            found = [float(x) for x in recorded(given)]
            same = np.allclose(found, wanted, rtol=0.05, atol=1e-4)
            trouble = "" if same else f"{found}, not {wanted}"
            self._recorded = recorded if same else None
        except Exception as err:  # noqa: BLE001 - whatever does not record runs as it is
            trouble = f"{type(err).__name__}: {str(err)[:600]}"
        self._router.clear()
        self.optimiser.zero_grad(set_to_none=True)
        self._held.fill_(0)
        print(
            f"recording the step: {trouble or 'done'}, {time.monotonic() - start:.1f} s", flush=True
        )

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

    def step(self, batch: Batch, learning_rate: float) -> tuple[Tensor, Tensor]:
        """One update. Returns the loss (nats per learned token) and the movement of the routers; the next
        step may overwrite both.
        """
        self._set_rate(learning_rate)
        given = self._pinned(batch)
        if self._recorded is not None:
            loss, movement, _ = self._recorded(given)
        else:
            loss, movement, _ = self._learn(given.to(self._device, non_blocking=True))
        self.steps += 1
        self.tokens += int(batch.used.sum())
        return loss, movement

    def _set_rate(self, learning_rate: float) -> None:
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(learning_rate)
            else:
                group["lr"] = learning_rate

    def _learn(self, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One update on the device, which is never waited for: loss, movement and the gradient's norm."""
        self._router.clear()
        loss = self._loss(given)
        movement = self._router.movement(given.shape[1])
        (loss + self._recipe.repeat_weight * movement).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._update(torch.maximum((~norm.isfinite()).float(), self._held))
        self._router.clear()
        return loss.detach(), movement.detach(), norm.detach()

    def _update(self, void: Tensor) -> None:
        if self._device.type == "cuda":  # the fused form asks on the device, without waiting for it
            self.optimiser.found_inf = void  # pyright: ignore[reportAttributeAccessIssue]
            self.optimiser.step()
        elif not void:
            self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def loss(self, batch: Batch) -> Tensor:
        """Mean cross-entropy over the learned positions."""
        return self._loss(self._pinned(batch).to(self._device, non_blocking=True))

    def _loss(self, given: Tensor) -> Tensor:
        """given: as `_packed`. Every position reaches the output head, so that all shapes are fixed."""
        ids, targets, conversations, used = given.unbind()
        kinds = self.model.config.text_config.layer_types
        self._forms.arrange(conversations)
        with self._autocast():
            hidden = self.model.model(
                input_ids=ids.long(),
                attention_mask=dict.fromkeys(kinds, used.bool()),
                use_cache=False,
            ).last_hidden_state
            loss = self._forms.judge(
                hidden.flatten(0, 1), self.model.lm_head.weight, targets.flatten()
            )
        self._forms.arrange(None)
        return loss

    def _pinned(self, batch: Batch) -> Tensor:
        packed = _packed(batch)
        return packed.pin_memory() if self._device.type == "cuda" else packed

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
        picks: list[list[Tensor]] = [[] for _ in range(len(self._router))]
        used: list[Tensor] = []
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
    if device.type != "cuda":
        return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95))
    rate_there = torch.zeros((), device=device)  # a recorded step reads it
    return torch.optim.AdamW(groups, lr=rate_there, betas=(0.9, 0.95), fused=True, capturable=True)


def _packed(batch: Batch) -> Tensor:
    """[4, rows, width] int16: ids, targets, conversations, used. One tensor is one copy to the device."""
    parts = (batch.ids, batch.targets, batch.conversations, batch.used.astype(np.int16))
    return torch.from_numpy(np.stack(parts))


def close(batches: Iterator[Batch]) -> None:
    """Stop the processes behind a stream of batches."""
    with suppress(AttributeError):
        batches.close()  # pyright: ignore[reportAttributeAccessIssue]
