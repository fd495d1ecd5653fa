"""The kernels around the operator on a GPU against the same functions in f64 on the CPU."""

import pytest
import torch
from torch import Tensor

import mhla  # noqa: F401

ops = torch.ops.mhla
DTYPES = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}  # and relative error
LAYOUTS = ["dense", "fused"]  # v alone, or a slice of one projection to q, k and v


def leaf(layout: str, tokens: int, heads: int, width: int, dtype, device) -> Tensor:
    if layout == "dense":
        return torch.randn(2, tokens, heads, width, dtype=dtype, device=device)
    return torch.randn(2, tokens, 3, heads, width, dtype=dtype, device=device)[:, :, 1]


def exact(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach().cpu().double().requires_grad_()


def assert_near(got: Tensor, wanted: Tensor, tolerance: float) -> None:
    error = (got.detach().cpu().double() - wanted.detach()).norm() / wanted.detach().norm()
    assert error < tolerance, f"off by {error:.2e} of the norm"


def compare(function, inputs: list[Tensor | None], tolerance: float) -> None:
    """Result and gradients of `function` on the inputs' device and in f64 on the CPU."""
    ours = [None if x is None else x.detach().requires_grad_() for x in inputs]
    truth = [exact(x) for x in inputs]
    got, wanted = function(*ours), function(*truth)
    assert got.dtype == inputs[0].dtype
    assert_near(got, wanted, tolerance)
    gradient = torch.randn_like(got)
    got.backward(gradient)
    wanted.backward(gradient.cpu().double())
    for mine, true in zip(ours, truth, strict=True):
        if mine is not None:
            assert_near(mine.grad, true.grad, 2 * tolerance)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("grid,size", [((4, 4), 3), ((7, 9), 5), ((3, 17), 3), ((3, 5, 10), 3), ((2, 8), 7)])
@pytest.mark.parametrize("with_bias,with_addend", [(True, True), (False, False)])
def test_grid_convolution(device, layout, dtype, grid, size, with_bias, with_addend):
    torch.manual_seed(1)
    heads, width = 3, 24
    v = leaf(layout, torch.tensor(grid).prod().item(), heads, width, dtype, device)
    weight = torch.randn(heads * width, 1, *[size] * len(grid), dtype=dtype, device=device)
    bias = torch.randn(heads * width, dtype=dtype, device=device) if with_bias else None
    addend = torch.randn(v.shape, dtype=dtype, device=device) if with_addend else None

    def run(v, weight, bias, addend):
        return ops.grid_convolution(v, list(grid), weight, bias, addend)

    compare(run, [v, weight, bias, addend], DTYPES[dtype])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("grid,size", [((7, 9), 5), ((3, 5, 10), 3)])
@pytest.mark.parametrize("with_bias,with_addend", [(True, True), (False, False)])
def test_weights_may_be_shared_by_the_heads(device, layout, dtype, grid, size, with_bias, with_addend):
    torch.manual_seed(1)
    v = leaf(layout, torch.tensor(grid).prod().item(), 3, 24, dtype, device)
    weight = torch.randn(24, 1, *[size] * len(grid), dtype=dtype, device=device)
    bias = torch.randn(24, dtype=dtype, device=device) if with_bias else None
    addend = torch.randn(v.shape, dtype=dtype, device=device) if with_addend else None

    def run(v, weight, bias, addend):
        return ops.grid_convolution(v, list(grid), weight, bias, addend)

    compare(run, [v, weight, bias, addend], DTYPES[dtype])


@pytest.mark.parametrize("grid,size", [((40, 43), 3), ((41, 40), 5), ((6, 15, 20), 3)])
def test_gradients_of_many_tokens_are_summed_in_parts_and_the_same_every_time(device, grid, size):
    torch.manual_seed(1)
    v = leaf("fused", torch.tensor(grid).prod().item(), 3, 40, torch.bfloat16, device)
    weight = torch.randn(120, 1, *[size] * len(grid), dtype=torch.bfloat16, device=device)
    bias = torch.randn(120, dtype=torch.bfloat16, device=device)

    def run(v, weight, bias):
        return ops.grid_convolution(v, list(grid), weight, bias)

    compare(run, [v, weight, bias], DTYPES[torch.bfloat16])
    gradients = []
    for _ in range(2):
        leaves = [x.detach().requires_grad_() for x in (v, weight, bias)]
        run(*leaves).square().sum().backward()
        gradients.append([x.grad for x in leaves])
    for a, b in zip(*gradients, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["rotary", "rotary_grid", "rotary_axes"])
def test_rotary(device, layout, dtype, name):
    torch.manual_seed(1)
    grid = [3, 7]
    x = leaf(layout, 21, 3, 32, dtype, device)
    function = {
        "rotary": lambda x: ops.rotary(x),
        "rotary_grid": lambda x: ops.rotary_grid(x, grid),
        "rotary_axes": lambda x: ops.rotary_axes(x, grid),
    }[name]
    compare(function, [x], DTYPES[dtype])
    assert torch.equal(function(x), function(x)), "a kept table gives another result"


@pytest.mark.parametrize("width", [6, 20])
def test_widths_that_are_not_whole_chunks_are_served_too(device, width):
    torch.manual_seed(1)
    v = torch.randn(2, 12, 2, width, device=device, dtype=torch.bfloat16)
    weight = torch.randn(2 * width, 1, 3, 3, device=device, dtype=torch.bfloat16)
    compare(lambda v, w: ops.grid_convolution(v, [3, 4], w), [v, weight], 8e-3)
    compare(lambda v: ops.rotary_axes(v, [3, 4]), [v], 8e-3)
