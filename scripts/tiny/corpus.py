"""The mixture: an endless, seeded stream of samples of one split.

Sample number i of a seed depends on nothing but the seed, the split and i.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from random import Random

from glm53_server.chat.messages import Message, Role

from . import arithmetic, clock, dialogue, json_answers, lists, tool_tasks, units, world
from .practice import PRACTICE
from .samples import Maker, Sample, Split, split_of

# Weights in a thousand. What is held out is drawn from these alone.
MIXTURE: tuple[tuple[Maker, float], ...] = (
    *((make, 250 * weight / 14) for make, weight in arithmetic.MAKERS),
    *((make, 60 * weight / 7) for make, weight in clock.MAKERS),
    *((make, 40 * weight) for make, weight in units.MAKERS),
    *((make, 60 * weight / 6) for make, weight in dialogue.MAKERS),
    *((make, 50 * weight / 5) for make, weight in lists.MAKERS),
    *((make, 80 * weight / 6) for make, weight in json_answers.MAKERS),
    *((make, 240 * weight / 13) for make, weight in tool_tasks.MAKERS),
    (world.fact, 80), (world.reverse, 40), (world.follow_up, 25), (world.unknown_place, 15),
    (dialogue.unknowable, 20), (dialogue.remembered, 30), (arithmetic.carried_on, 10),
)  # fmt: skip
_SYSTEM = (
    "You are a helpful assistant.", "Be brief.", "Answer politely.", "You are a friendly guide.",
    "Use the tools when they help.", "Think first, then answer.",
)  # fmt: skip
# Only in training.
_MORE_SYSTEM = (
    "You are a careful assistant with tools. Call a tool only when it fits the request.", "You answer questions.",
    "You are an agent. Use the given functions; never invent their results.", "Answer in one sentence.",
    "You are a helpful, honest and precise assistant. Copy names and numbers exactly as they were given.",
)  # fmt: skip
_TRIES = 2000


def samples(seed: int, split: Split = Split.TRAIN, *, start: int = 0) -> Iterator[Sample]:
    """Samples from number `start` on; never ends."""
    for number in count(start):
        yield sample(seed, split, number)


def sample(seed: int, split: Split, number: int) -> Sample:
    """One sample of the stream."""
    rng = Random(f"{seed}/{split.value}/{number}")
    mixture = (*MIXTURE, *PRACTICE) if split is Split.TRAIN else MIXTURE
    makers, weights = zip(*mixture, strict=True)
    for _ in range(_TRIES):
        made = rng.choices(makers, weights)[0](rng)
        if made.split is split and split_of(made.key) is split:
            return _dressed(rng, made, split)
    raise AssertionError("no sample of this split was drawn: a maker has too few keys")


def _dressed(rng: Random, made: Sample, split: Split) -> Sample:
    """A system prompt, an effort and reasoning or not. Held-out samples always reason."""
    messages = made.messages
    if rng.random() < 0.25:
        known = (*_SYSTEM, *_MORE_SYSTEM) if split is Split.TRAIN else _SYSTEM
        messages = (Message(Role.SYSTEM, rng.choice(known)), *messages)
    thinks = split is Split.HELD_OUT or rng.random() < 0.9
    if not thinks:
        messages = tuple(replace(m, reasoning=None) for m in messages)
    effort = rng.choices((None, "low", "high"), (8, 1, 1))[0]
    return replace(made, messages=messages, effort=effort, thinks=thinks)
