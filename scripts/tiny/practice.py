"""What is trained on besides: more of what the suite found difficult, and what a newcomer types first.

Never asked in the suite, so that figures of two models compare. Its questions have the keys of the same
questions elsewhere, and are left out where those are held out.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from glm53_server.chat.messages import Message

from . import (
    arithmetic,
    clock,
    copying,
    dialogue,
    json_answers,
    lists,
    small_talk,
    tool_practice,
    typed_sums,
    units,
    world,
)
from .samples import Maker, Sample

_TYPED: tuple[tuple[Maker, float], ...] = (
    (world.fact, 6), (world.reverse, 2), (dialogue.talk, 3), (small_talk.more_talk, 6), (small_talk.impossible, 1),
    (arithmetic.sum_of_two, 2), (arithmetic.difference, 2), (arithmetic.product, 2), (clock.day_later, 1),
    (clock.month_next, 1), (clock.clock_later, 1), (clock.next_day, 1), (units.convert, 2),
)  # fmt: skip


def carelessly(rng: Random) -> Sample:
    """A question in lower case, without its punctuation or with more of it."""
    makers, weights = zip(*_TYPED, strict=True)
    sample = rng.choices(makers, weights)[0](rng)
    *before, asked, said = sample.messages
    return replace(sample, messages=(*before, _careless(rng, asked), said))


def _careless(rng: Random, asked: Message) -> Message:
    text = asked.content.lower() if rng.random() < 0.6 else asked.content
    if rng.random() < 0.7:
        text = text.rstrip("?.!")
    return replace(asked, content=text + rng.choice(("", "", "", "!", " ", "??", " please")))


def later(rng: Random) -> Sample:
    """Any question after one to four others, about other things; now and then one of them used a tool."""
    last = tool_practice.strange_call(rng) if rng.random() < 0.25 else _quiet(rng)
    before = [_quiet(rng) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.3:
        before[rng.randrange(len(before))] = tool_practice.strange_call(rng)
    offered = [tool for sample in (*before, last) for tool in sample.tools]
    if len({tool["function"]["name"] for tool in offered}) < len(offered):
        return last
    history = [
        message for number, sample in enumerate(before) for message in _finished(sample, number)
    ]
    mentions = tuple(key for sample in before for key in (sample.key, *sample.mentions))
    return replace(
        last,
        messages=(*history, *last.messages),
        tools=tuple(offered),
        mentions=(*mentions, *last.mentions),
    )


def _quiet(rng: Random) -> Sample:
    makers, weights = zip(*tool_practice.QUIET, strict=True)
    return rng.choices(makers, weights)[0](rng)


def _finished(sample: Sample, number: int) -> list[Message]:
    """Its messages as history: no reasoning, and call ids that occur once."""
    return [
        replace(
            message,
            reasoning=message.reasoning and "",
            calls=tuple(replace(call, id=f"{call.id}-{number}") for call in message.calls),
            call_id=message.call_id and f"{message.call_id}-{number}",
        )
        for message in sample.messages
    ]


# Weights beside the thousand of the mixture.
PRACTICE: tuple[tuple[Maker, float], ...] = (
    *((make, 190 * weight / 3) for make, weight in copying.MAKERS),
    *((make, 720 * weight / 58) for make, weight in tool_practice.PRACTICE),
    *((make, 130 * weight / 8) for make, weight in typed_sums.PRACTICE),
    *((make, 140 * weight / 9) for make, weight in small_talk.PRACTICE),
    *((make, 50 * weight / 6) for make, weight in world.PRACTICE),
    *((make, 80 * weight / 4) for make, weight in json_answers.PRACTICE),
    *((make, 60 * weight / 4) for make, weight in lists.PRACTICE),
    *((make, 20 * weight / 2) for make, weight in clock.PRACTICE),
    *((make, 50 * weight / 7) for make, weight in clock.MAKERS),
    (dialogue.chosen, 30), (dialogue.remembered, 20), (arithmetic.story, 25), (units.convert, 30), (carelessly, 90), (later, 150),
)  # fmt: skip
