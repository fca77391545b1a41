"""The routers' structs: both layouts of a gate, what layers share, and what is refused."""

from __future__ import annotations

import ctypes

import pytest
import torch

from glm53_kernels.cuda_router import MOST_GUESSED, RouterStruct
from glm53_server.moe.routers import Gate, Routers

HIDDEN, EXPERTS = 64, 24


def test_both_layouts_name_the_same_element():
    stored = torch.randn(HIDDEN, EXPERTS).half()
    transposed = stored.T.contiguous()
    bias = torch.randn(EXPERTS).half()
    routers = Routers([Gate(stored, bias, 4), Gate(transposed.T, None, 4)])
    by_expert, by_input = routers.structs
    assert (by_expert.gate_expert_stride, by_expert.gate_input_stride) == (1, EXPERTS)
    assert (by_input.gate_expert_stride, by_input.gate_input_stride) == (HIDDEN, 1)
    for struct in routers.structs:
        at = struct.gate + 2 * (5 * struct.gate_expert_stride + 7 * struct.gate_input_stride)
        assert ctypes.string_at(at, 2) == stored[7, 5].numpy().tobytes()
        assert (struct.size, struct.hidden, struct.experts) == (
            ctypes.sizeof(RouterStruct), HIDDEN, EXPERTS,
        )  # fmt: skip
    assert (by_expert.bias, by_input.bias) == (bias.data_ptr(), 0)


def test_layers_share_scratch_and_answer():
    routers = Routers([Gate(torch.zeros(HIDDEN, EXPERTS).half(), None, picks) for picks in (2, 99)])
    first, second = routers.structs
    assert (first.scores, first.joined, first.out) == (second.scores, second.joined, second.out)
    assert first.out == routers.out.data_ptr()
    assert (first.picks, second.picks) == (2, MOST_GUESSED)
    assert routers.out.shape == (MOST_GUESSED,)
    assert routers.out.dtype == torch.int64


@pytest.mark.parametrize(
    ("weight", "bias", "why"),
    [
        (torch.zeros(HIDDEN, EXPERTS), None, "weights"),
        (torch.zeros(HIDDEN, 2 * EXPERTS).half()[:, ::2], None, "weights"),
        (torch.zeros(HIDDEN, EXPERTS).half(), torch.zeros(EXPERTS), "bias"),
        (torch.zeros(HIDDEN, EXPERTS).half(), torch.zeros(EXPERTS + 1).half(), "bias"),
        (torch.zeros(HIDDEN, EXPERTS).half(), torch.zeros(2 * EXPERTS).half()[::2], "gaps"),
    ],
)
def test_another_kind_of_router_is_refused(
    weight: torch.Tensor, bias: torch.Tensor | None, why: str
):
    with pytest.raises(ValueError, match=why):
        Routers([Gate(weight, bias, 4)])
