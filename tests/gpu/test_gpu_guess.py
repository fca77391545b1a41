"""The look-ahead's guess against float64: rows, sizes, layouts, ties, NaN, repetition, a graph, refusals."""

from __future__ import annotations

import pytest
import torch
from gpu_rig import DEVICE

from glm53_kernels.cuda import CudaKernelError, CudaKernels
from glm53_server.moe.routers import Gate, Routers

HIDDEN = 1096  # no multiple of what a block reads at a time, in either layout
SIZES = {288: 8, 16: 4}  # experts: picks
TOLERANCE = 1e-5  # of a score: fp32 sums of a thousand products


def made(
    experts: int, *, by_input: bool, with_bias: bool, hidden: int = HIDDEN, whole: bool = False
) -> Gate:
    """A router; `whole`: of small whole numbers, so that sums are exact and many are equal."""
    generator = torch.Generator().manual_seed(experts + 2 * by_input + with_bias)
    if whole:
        weight = torch.randint(-1, 2, (hidden, experts), generator=generator).double()
    else:
        weight = torch.randn(hidden, experts, generator=generator, dtype=torch.float64)
        weight /= hidden**0.5
    bias = torch.rand(experts, generator=generator).half().to(DEVICE) if with_bias else None
    weight = weight.half().to(DEVICE)
    return Gate(weight.T.contiguous().T if by_input else weight, bias, SIZES[experts])


def inputs(rows: int, hidden: int = HIDDEN) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, hidden, generator=generator).half().to(DEVICE)


def ask(kernels: CudaKernels, routers: Routers, x: torch.Tensor) -> list[int]:
    stream = torch.cuda.current_stream().cuda_stream
    routers.out.fill_(-7)
    kernels.guess(routers.structs[0], x.data_ptr(), x.shape[0], stream)
    torch.cuda.synchronize()
    assert routers._joined.tolist() == [0], "the next launch would not find its last block"
    return routers.out.tolist()


def reference(gate: Gate, x: torch.Tensor) -> torch.Tensor:
    """Scores in float64, [experts] on the host; a NaN loses to every number."""
    logits = x.double().cpu() @ gate.weight.double().cpu()
    best = logits.nan_to_num(nan=-torch.inf).amax(0)
    bias = 0.0 if gate.bias is None else gate.bias.double().cpu()
    return best.sigmoid() + bias


def check_best(found: list[int], scores: torch.Tensor, picks: int) -> None:
    """Distinct ids whose scores are the best ones, best first, but for the rounding of fp32."""
    assert len(found) == len(set(found)) == picks
    assert all(0 <= expert < len(scores) for expert in found)
    wanted = scores.sort(descending=True).values[:picks]
    assert (scores[found] - wanted).abs().max() < TOLERANCE


@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("by_input", [False, True], ids=["by expert", "by input"])
@pytest.mark.parametrize("experts", SIZES)
@pytest.mark.parametrize("rows", [1, 2, 5, 8])
def test_the_best_of_any_row(
    kernels: CudaKernels, rows: int, experts: int, by_input: bool, with_bias: bool
):
    gate, x = made(experts, by_input=by_input, with_bias=with_bias), inputs(rows)
    found = ask(kernels, Routers([gate]), x)
    check_best(found, reference(gate, x), gate.picks)


@pytest.mark.parametrize("by_input", [False, True], ids=["by expert", "by input"])
def test_a_short_gate_and_a_long_one(kernels: CudaKernels, by_input: bool):
    for hidden in (8, 128, 6144):
        gate = made(288, by_input=by_input, with_bias=True, hidden=hidden)
        x = inputs(3, hidden)
        check_best(ask(kernels, Routers([gate]), x), reference(gate, x), gate.picks)


@pytest.mark.parametrize("by_input", [False, True], ids=["by expert", "by input"])
@pytest.mark.parametrize("experts", SIZES)
def test_of_equals_the_lower_id(kernels: CudaKernels, experts: int, by_input: bool):
    # Sums of eight whole numbers: -8 .. 8, exact, and their sigmoids are distinct in fp32.
    gate = made(experts, by_input=by_input, with_bias=False, hidden=8, whole=True)
    x = torch.ones(2, 8, dtype=torch.float16, device=DEVICE)
    order = reference(gate, x).sort(descending=True, stable=True).indices
    assert ask(kernels, Routers([gate]), x) == order[: gate.picks].tolist()
    x.zero_()
    assert ask(kernels, Routers([gate]), x) == list(range(gate.picks))


@pytest.mark.parametrize("by_input", [False, True], ids=["by expert", "by input"])
def test_a_row_of_nan_leaves_the_guess_to_the_others(kernels: CudaKernels, by_input: bool):
    gate, x = made(288, by_input=by_input, with_bias=True), inputs(5)
    x[0], x[3, 17], x[4] = torch.nan, torch.nan, torch.nan
    check_best(ask(kernels, Routers([gate]), x), reference(gate, x), gate.picks)


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("by_input", [False, True], ids=["by expert", "by input"])
def test_nothing_but_nan_names_distinct_experts(kernels: CudaKernels, by_input: bool, rows: int):
    gate = made(288, by_input=by_input, with_bias=False)
    found = ask(kernels, Routers([gate]), torch.full_like(inputs(rows), torch.nan))
    assert found == list(range(gate.picks))


@pytest.mark.parametrize("by_input", [False, True], ids=["by expert", "by input"])
def test_a_broken_expert_is_named_last(kernels: CudaKernels, by_input: bool):
    gate, x = made(16, by_input=by_input, with_bias=True), inputs(2)
    assert gate.bias is not None
    scores = reference(gate, x)
    best = int(scores.argmax())
    gate.bias[best] = torch.nan
    scores[best] = -torch.inf
    found = ask(kernels, Routers([gate]), x)
    assert best not in found
    check_best(found, scores, gate.picks)


@pytest.mark.parametrize("by_input", [False, True], ids=["by expert", "by input"])
def test_a_hundred_launches_in_a_row_agree(kernels: CudaKernels, by_input: bool):
    gate, x = made(288, by_input=by_input, with_bias=True), inputs(5)
    routers = Routers([gate])
    first = ask(kernels, routers, x)
    stream = torch.cuda.current_stream().cuda_stream
    answers: list[torch.Tensor] = []
    for _ in range(100):
        kernels.guess(routers.structs[0], x.data_ptr(), 5, stream)
        answers.append(routers.out.clone())
    assert torch.stack(answers).tolist() == [first] * 100


def test_layers_that_share_the_scratch(kernels: CudaKernels):
    gates = [made(experts, by_input=True, with_bias=True) for experts in (288, 16, 288)]
    routers, x = Routers(gates), inputs(2)
    stream = torch.cuda.current_stream().cuda_stream
    for struct, gate in zip(routers.structs, gates, strict=True):
        kernels.guess(struct, x.data_ptr(), 2, stream)
        check_best(routers.out.tolist()[: struct.picks], reference(gate, x), gate.picks)


def test_in_a_graph(kernels: CudaKernels):
    gate, x = made(288, by_input=True, with_bias=True), inputs(2)
    routers = Routers([gate])
    ask(kernels, routers, x)  # the first launch loads code, which no capture may do
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.guess(routers.structs[0], x.data_ptr(), 2, torch.cuda.current_stream().cuda_stream)
    for seed in range(3):
        x.copy_(inputs(2 + seed)[:2])
        graph.replay()
        check_best(routers.out.tolist(), reference(gate, x), gate.picks)


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("size", 8, "size"),
        ("experts", 1025, "experts"),
        ("picks", 17, "picks"),
        ("picks", 0, "picks"),
        ("hidden", 12, "hidden"),
        ("gate_input_stride", 2, "stride"),
        ("gate_expert_stride", HIDDEN - 8, "stride"),
        ("gate_expert_stride", HIDDEN + 1, "stride"),
    ],
)
def test_what_it_refuses(kernels: CudaKernels, field: str, value: int, why: str):
    routers, x = Routers([made(288, by_input=True, with_bias=False)]), inputs(1)
    struct = type(routers.structs[0]).from_buffer_copy(routers.structs[0])
    setattr(struct, field, value)
    with pytest.raises(CudaKernelError, match=f"glm53_guess: .*{why}"):
        kernels.guess(struct, x.data_ptr(), 1, torch.cuda.current_stream().cuda_stream)


@pytest.mark.parametrize("rows", [0, 9])
def test_it_refuses_other_numbers_of_rows(kernels: CudaKernels, rows: int):
    routers, x = Routers([made(16, by_input=True, with_bias=False)]), inputs(1)
    with pytest.raises(CudaKernelError, match="rows"):
        kernels.guess(routers.structs[0], x.data_ptr(), rows, 0)
