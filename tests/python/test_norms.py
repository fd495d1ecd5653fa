"""Norms with what stands around them, on a GPU one kernel, against the same steps in f64."""

import pytest
import torch
from torch import Tensor

import mhla  # noqa: F401

ops = torch.ops.mhla
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Every number of chunks that a lane has, rows narrower than a warp, and what is no whole chunk.
WIDTHS = [8, 20, 48, 64, 128, 192, 384, 768, 1024, 1152, 1536, 2048, 2304]


def reference(x, branch, gate, weight, bias, shift, scale, rms, eps=1e-6):
    """(sum, normed) by single operations, in the type of the inputs."""
    if branch is not None:
        x = x + (branch if gate is None else branch * gate.unsqueeze(1))
    width = (x.shape[-1],)
    if rms:
        y = torch.nn.functional.rms_norm(x, width, weight, eps)
    else:
        y = torch.nn.functional.layer_norm(x, width, weight, bias, eps)
    if scale is not None:
        y = y * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)
    return x, y


def fused(x, branch, gate, weight, bias, shift, scale, rms, eps=1e-6):
    if branch is None:
        return x, ops.modulated_norm(x, weight, bias, shift, scale, eps=eps, rms=rms)
    return ops.residual_norm(x, branch, gate, weight, bias, shift, scale, eps=eps, rms=rms)


def inputs(width: int, dtype, device, steps: str, batch: int = 3, tokens: int = 7) -> list[Tensor | None]:
    torch.manual_seed(width)

    def rows():
        return torch.randn(batch, tokens, width, dtype=dtype, device=device)

    def of_sample():  # a slice of what one projection makes, as in the networks
        return torch.randn(batch, 6, width, dtype=dtype, device=device)[:, 2]

    def vector():
        return torch.randn(width, dtype=dtype, device=device)

    has = steps.split("+")
    return [
        rows() + 0.5,
        rows() if "branch" in has else None,
        of_sample() if "gate" in has else None,
        vector() if "weight" in has else None,
        vector() if "bias" in has else None,
        of_sample() if "modulation" in has else None,
        of_sample() if "modulation" in has else None,
    ]


def run(function, tensors, gradients, rms):
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in tensors]
    total, normed = function(*leaves, rms)
    results = [total.detach(), normed.detach()]
    outputs = [normed] if tensors[1] is None else [total, normed]
    torch.autograd.backward(outputs, [g.to(o) for o, g in zip(outputs, gradients[-len(outputs) :], strict=True)])
    return results + [None if leaf is None else leaf.grad for leaf in leaves]


def error(got: Tensor, truth: Tensor) -> float:
    return ((got.cpu().double() - truth).norm() / truth.norm()).item()


def check(tensors, rms):
    """At most twice the error of the single operations in the same precision."""
    gradients = [torch.randn(tensors[0].shape, device=tensors[0].device).to(tensors[0].dtype) for _ in range(2)]
    exact = [None if t is None else t.cpu().double() for t in tensors]
    truth = run(reference, exact, [g.cpu().double() for g in gradients], rms)
    naive, got = run(reference, tensors, gradients, rms), run(fused, tensors, gradients, rms)
    least = {torch.float32: 2e-7, torch.bfloat16: 2e-3, torch.float16: 3e-4}[tensors[0].dtype]
    names = ["sum", "normed", "d x", "d branch", "d gate", "d weight", "d bias", "d shift", "d scale"]
    for name, mine, plain, true in zip(names, got, naive, truth, strict=True):
        assert (mine is None) == (true is None), name
        if true is not None:
            assert mine.dtype == plain.dtype, name
            bound = 2 * max(error(plain, true), least)
            assert error(mine, true) < bound, f"{name}: {error(mine, true):.2e}, bound {bound:.2e}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rms", [False, True])
def test_all_steps_at_every_width(device, dtype, width, rms):
    steps = "branch+gate+weight+modulation" + ("" if rms else "+bias")
    check(inputs(width, dtype, device, steps), rms)


@pytest.mark.parametrize("steps", ["", "weight+bias", "modulation", "branch", "branch+gate", "branch+gate+modulation"])
@pytest.mark.parametrize("rms", [False, True])
def test_steps_may_be_left_out(device, steps, rms):
    steps = steps.replace("+bias", "") if rms else steps
    check(inputs(384, torch.bfloat16, device, steps), rms)


def test_many_tokens_are_summed_in_parts(device):
    check(inputs(192, torch.bfloat16, device, "branch+gate+weight+bias+modulation", 2, 1500), False)


def test_rows_of_a_slice_and_of_heads(device):
    wide = torch.randn(2, 5, 3, 4, 64, device=device, dtype=torch.bfloat16)
    x = wide[:, :, 1]  # [B, N, H, D]
    weight = torch.randn(64, device=device, dtype=torch.bfloat16)
    want = torch.nn.functional.rms_norm(x.double().cpu(), (64,), weight.double().cpu(), 1e-6)
    got = ops.modulated_norm(x.flatten(0, 1), weight, rms=True).view(x.shape)
    assert error(got, want) < 4e-3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [64, 384, 1152])
def test_a_second_norm_in_the_same_pass(device, dtype, width):
    x, _, _, _, _, shift, scale = inputs(width, dtype, device, "modulation")
    weight, bias = torch.randn(2, width, device=device, dtype=dtype).unbind()

    def both(x, shift, scale, weight, bias):
        y = reference(x, None, None, None, None, shift, scale, False)[1]
        return torch.nn.functional.layer_norm(y, (width,), weight, bias, 1e-5)

    plain = [x, shift, scale, weight, bias]
    truth, naive = both(*[t.cpu().double() for t in plain]), both(*plain)
    with torch.no_grad():
        got = ops.modulated_norm(x, shift=shift, scale=scale, then_weight=weight, then_bias=bias)
    assert error(got, truth) < 2 * max(error(naive, truth), 2e-7)
    x.requires_grad_()
    trained = ops.modulated_norm(x, shift=shift, scale=scale, then_weight=weight, then_bias=bias)
    assert trained.requires_grad and error(trained.detach(), truth) < 2 * max(error(naive, truth), 2e-7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("relu_eps", [False, True])
@pytest.mark.parametrize("heads,width", [(3, 32), (12, 128), (2, 20)])
def test_norm_feature_map_and_turn(device, dtype, relu_eps, heads, width):
    torch.manual_seed(1)
    grid = [3, 2, 5]
    x = torch.randn(2, 30, heads * width, device=device, dtype=dtype)
    weight = torch.randn(heads * width, device=device, dtype=dtype)

    def steps(x, weight):
        y = torch.nn.functional.rms_norm(x, (heads * width,), weight, 1e-6)
        y = torch.relu(y).unflatten(-1, (heads, width)) + (1e-6 if relu_eps else 0)
        return ops.rotary_axes(y, grid), y

    truth, naive = steps(x.cpu().double(), weight.cpu().double()), steps(x, weight)
    with torch.no_grad():
        kernel = ops.normed_and_turned(x, weight, heads, grid, relu_eps)
    trained = ops.normed_and_turned(x.clone().requires_grad_(), weight, heads, grid, relu_eps)
    for got in (kernel, trained):
        for mine, plain, true in zip(got, naive, truth, strict=True):
            assert mine.dtype == dtype and mine.shape == true.shape
            assert error(mine.detach(), true) < 2 * max(error(plain, true), 2e-7)


def test_the_same_bits_every_time(device):
    tensors = inputs(384, torch.bfloat16, device, "branch+gate+weight+bias+modulation", 2, 900)
    gradients = [torch.randn_like(tensors[0]) for _ in range(2)]
    first, second = (run(fused, tensors, gradients, False) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_the_result_is_narrow_and_the_sum_is_not(device, dtype):
    if device == "cpu":
        pytest.skip("LibTorch's own operations, in f32")
    x = torch.randn(3, 7, 384, device=device)
    _, branch, gate, _, _, shift, scale = inputs(384, dtype, device, "branch+gate+modulation")  # of linear layers
    with torch.autocast("cuda", dtype):
        total, normed = ops.residual_norm(x.requires_grad_(), branch, gate, None, None, shift, scale)
    assert total.dtype == torch.float32 and normed.dtype == dtype
    exact = [None if t is None else t.detach().cpu().double() for t in (x, branch, gate, None, None, shift, scale)]
    exact[0].requires_grad_()
    true = reference(*exact, False)
    assert error(total.detach(), true[0].detach()) < 1e-6
    assert error(normed.detach(), true[1].detach()) < 4e-3
    (total.sum() + (normed.float() * branch.float()).sum()).backward()
    (true[0].sum() + (true[1] * exact[1]).sum()).backward()
    assert error(x.grad, exact[0].grad) < 1e-2


def focused(x: Tensor, scale: Tensor, power: float) -> Tensor:
    """ops.focused by single operations: f32 for 16-bit tokens."""
    flat = (x if x.dtype == torch.float64 else x.float()).flatten(2)
    positive = (torch.relu(flat) + 1e-6) / torch.nn.functional.softplus(scale)
    sharp = positive**power
    return (sharp / sharp.norm(dim=-1, keepdim=True) * positive.norm(dim=-1, keepdim=True)).to(x.dtype).view(x.shape)


def focused_and_gradients(function, x, scale, gradient, power):
    leaves = [x.detach().requires_grad_(), scale.detach().requires_grad_()]
    y = function(*leaves, power)
    return [y.detach(), *torch.autograd.grad(y, leaves, gradient)]


def focus_inputs(heads, width, dtype, device, tokens=33):
    torch.manual_seed(heads * width)
    x = torch.randn(2, tokens, 3, heads, width, device=device).to(dtype)[:, :, 1]  # of one projection to q, k, v
    x[0, 0] = -1  # nothing positive
    return x, torch.randn(1, 1, heads * width, device=device), torch.randn(x.shape, device=device).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("power", [3.0, 2.5])
# Every number of chunks that a lane has, rows narrower than a warp, too wide ones, and no whole chunks.
@pytest.mark.parametrize(
    "heads,width", [(1, 8), (2, 10), (3, 16), (3, 64), (6, 64), (5, 96), (12, 64), (8, 128), (10, 128)]
)
def test_focusing_errs_at_most_twice_as_much_as_single_operations(device, dtype, power, heads, width):
    x, scale, gradient = focus_inputs(heads, width, dtype, device)
    exact = [t.cpu().double() for t in (x, scale, gradient)]
    truth = focused_and_gradients(focused, *exact, power)
    naive = focused_and_gradients(focused, x, scale, gradient, power)
    got = focused_and_gradients(ops.focused, x, scale, gradient, power)
    for name, mine, plain, true in zip(["focused", "d x", "d scale"], got, naive, truth, strict=True):
        assert mine.dtype == plain.dtype and mine.shape == true.shape, name
        bound = 2 * max(error(plain, true), 3e-7)
        assert error(mine, true) < bound, f"{name}: {error(mine, true):.2e}, bound {bound:.2e}"


def test_focusing_many_rows_has_the_same_bits_every_time(device):
    # 66,002 rows: more than one part has, and parts that do not divide them.
    x, scale, gradient = focus_inputs(1, 64, torch.bfloat16, device, tokens=33001)
    first, second = (focused_and_gradients(ops.focused, x, scale, gradient, 3.0) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    truth = focused_and_gradients(focused, x.cpu().double(), scale.cpu().double(), gradient.cpu().double(), 3.0)
    assert error(first[2], truth[2]) < 1e-5


def test_focusing_keeps_what_is_no_number(device):
    x, scale, _ = focus_inputs(3, 64, torch.bfloat16, device)
    x[1, 4, 2, 5] = torch.nan
    lost = ops.focused(x, scale).isnan().all(-1).all(-1)
    assert lost[1, 4] and lost.sum() == 1
