"""The CPU sampler: filters, penalties, bans and seeds, on logits small enough to check by hand."""

import pytest
import torch
from torch import Tensor

from glm53_server.engine.base import Sampling
from glm53_server.engine.cpu_sampling import Sampler

LOGITS = torch.tensor([1.0, 3.0, 2.0, 0.0, -1.0])


def sampler(prompt: tuple[int, ...] = (), **fields: object) -> Sampler:
    return Sampler(Sampling(**({"seed": 0} | fields)), prompt, 5)


def draws(count: int, logits: Tensor = LOGITS, **fields: object) -> list[int]:
    one = sampler(**fields)
    return [one.draw(logits, allowed=None) for _ in range(count)]


def test_greedy_takes_the_best_and_leaves_the_logits_alone() -> None:
    logits = LOGITS.clone()
    one = sampler(temperature=0.0, presence_penalty=5.0, logit_bias=((4, 1.0),))
    assert one.draw(logits, allowed=None, banned=[0]) == 1
    assert torch.equal(logits, LOGITS)


def test_draws_follow_the_distribution() -> None:
    counts = torch.bincount(torch.tensor(draws(4000, temperature=0.7)), minlength=5) / 4000
    assert torch.allclose(counts, (LOGITS / 0.7).softmax(0), atol=0.03)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 2}),
        ({"top_k": 50}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.0}, {1}),
        ({"top_p": 0.6}, {1}),  # the best id alone has 0.63
        ({"top_p": 0.7}, {1, 2}),
        ({"min_p": 1.0}, {1}),
        ({"min_p": 0.3}, {1, 2}),  # the second has 0.37 of the best
        ({"top_k": 2, "min_p": 0.5}, {1}),
        ({"temperature": 1e-6}, {1}),
        ({"temperature": 1e6, "top_k": 3}, {0, 1, 2}),
    ],
)
def test_filters_keep_exactly(fields: dict[str, float], kept: set[int]) -> None:
    assert set(draws(1500, **fields)) == kept


def test_seeds() -> None:
    assert draws(50, seed=7) == draws(50, seed=7)
    assert draws(50, seed=7) != draws(50, seed=8)
    assert draws(50, seed=-1) == draws(50, seed=-1)
    assert draws(50, seed=None) != draws(50, seed=None)


def test_bias() -> None:
    assert set(draws(20, temperature=0.0, logit_bias=((4, 5.0),))) == {4}
    assert 1 not in draws(500, logit_bias=((1, -100.0),))


def test_presence_and_frequency_penalties_count_output_only() -> None:
    assert draws(3, temperature=0.0, presence_penalty=1.5) == [1, 2, 1]
    assert draws(4, temperature=0.0, frequency_penalty=0.6) == [1, 1, 2, 1]
    prompted = sampler(prompt=(1,), temperature=0.0, presence_penalty=1.5)
    assert prompted.draw(LOGITS, allowed=None) == 1


def test_repetition_penalty_counts_the_prompt_and_turns_the_right_way() -> None:
    prompted = sampler(prompt=(1,), temperature=0.0, repetition_penalty=2.0)
    assert prompted.draw(LOGITS, allowed=None) == 2
    negative = torch.tensor([-1.0, -2.0, -1.5, -9.0, -9.0])
    prompted = sampler(prompt=(0,), temperature=0.0, repetition_penalty=2.0)
    assert prompted.draw(negative, allowed=None) == 2


def test_bans_yield_only_when_nothing_else_is_left() -> None:
    assert 1 not in [sampler(seed=i).draw(LOGITS, allowed=None, banned=[1]) for i in range(100)]
    only_three = torch.tensor([False, False, False, True, False])
    assert sampler().draw(LOGITS, allowed=only_three) == 3
    assert sampler().draw(LOGITS, allowed=only_three, banned=[3]) == 3
    assert sampler(top_k=1).draw(LOGITS, allowed=only_three, banned=[3, 1]) == 3
