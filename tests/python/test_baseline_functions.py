"""The functions of the baselines against their definitions: values, gradients, odd lengths."""

from __future__ import annotations

import mhla  # noqa: F401  registers torch.ops.mhla
import naive_attention as naive
import pytest
import torch
import torch.nn.functional as F
from conftest import needs_cuda

ops = torch.ops.mhla


@pytest.fixture(autouse=True)
def one_thread():
    """Threads of a busy machine wait for each other longer than these small tensors take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tensors(*shapes, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def assert_same(ours, expected, inputs, tolerance=1e-10):
    """Equal values, and equal gradients of a random linear form of them."""
    for got, want in zip(ours, expected):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    weights = tensors(*(o.shape for o in expected), seed=9)
    form = [sum((o * w).sum() for o, w in zip(outputs, weights)) for outputs in (ours, expected)]
    gradients = [torch.autograd.grad(value, inputs, retain_graph=True) for value in form]
    for got, want in zip(*gradients):
        torch.testing.assert_close(got, want, rtol=10 * tolerance, atol=10 * tolerance)


def qkv(tokens, *, heads=3, dk=8, dv=8, batch=2):
    return [t.requires_grad_() for t in tensors(*[(batch, tokens, heads, d) for d in (dk, dk, dv)])]


@pytest.mark.parametrize("causal", [False, True])
def test_softmax_attention_equals_its_definition(causal):
    inputs = qkv(17)
    assert_same([ops.softmax_attention(*inputs, causal)], [naive.softmax(*inputs, causal=causal)], inputs)


def test_causal_softmax_with_a_cache_sees_all_earlier_keys():
    q, k, v = qkv(17)
    assert_same([ops.softmax_attention(q[:, 12:], k, v, True)], [naive.softmax(q, k, v, causal=True)[:, 12:]], [q, k])


@pytest.mark.parametrize("eps", [1e-6, 1e-8])
def test_linear_attention_equals_its_definition(eps):
    inputs = qkv(17, dv=5)
    assert_same([ops.linear_attention(*inputs, eps=eps)], [naive.linear(*inputs, eps=eps)], inputs)


def test_linear_attention_may_take_other_tensors_in_the_denominator():
    q, k, v = qkv(12)
    turned = [ops.rotary(t.relu()) for t in (q, k)]
    ours = ops.linear_attention(*turned, v, "identity", q_den=q.relu(), k_den=k.relu())
    above = torch.einsum("bihd,bjhd,bjhe->bihe", *turned, v)
    below = torch.einsum("bihd,bjhd->bih", q.relu(), k.relu()) + 1e-6
    assert_same([ours], [above / below.unsqueeze(-1)], [q, k, v])


def test_an_unknown_feature_map_names_the_nearest():
    with pytest.raises(RuntimeError, match="relu_eps"):
        ops.linear_attention(*qkv(4), "relu_ep")


def test_focused_attention_equals_its_definition():
    inputs = [*qkv(15), tensors((1, 1, 24), seed=3)[0].requires_grad_()]
    assert_same([ops.focused_attention(*inputs)], [naive.focused(*inputs)], inputs)


def test_inline_attention_equals_its_definition_and_keeps_constants():
    inputs = qkv(15, dv=5)
    assert_same([ops.inline_attention(*inputs)], [naive.inline(*inputs)], inputs)
    q, k, v = inputs
    torch.testing.assert_close(ops.inline_attention(q, k, torch.ones_like(v)), torch.ones_like(v))


@pytest.mark.parametrize("name", ["rala", "mala"])
def test_rala_and_mala_equal_their_definitions(name):
    inputs, grid = qkv(15), (3, 5)
    assert_same([getattr(ops, name)(*inputs, grid)], [getattr(naive, name)(*inputs, grid)], inputs)


LENGTHS = [1, 2, 15, 16, 17, 64, 65, 129]


@pytest.mark.parametrize("tokens", LENGTHS)
def test_causal_linear_attention_equals_its_recurrence(tokens):
    inputs = qkv(tokens, dv=5)
    assert_same(ops.causal_linear_attention(*inputs), naive.recurrence(*inputs), inputs)


@pytest.mark.parametrize("tokens", LENGTHS)
def test_retention_equals_its_recurrence(tokens):
    inputs = qkv(tokens, dv=5)
    decay = naive.retention_decay(tokens, 3)
    assert_same(ops.retention(*inputs), naive.recurrence(*inputs, decay), inputs)


@pytest.mark.parametrize("tokens", LENGTHS)
def test_simple_gla_equals_its_recurrence(tokens):
    inputs = [*qkv(tokens, dv=5), tensors((2, tokens, 3), seed=4)[0].requires_grad_()]
    q, k, v, x = inputs
    g = F.logsigmoid(x)
    assert_same(ops.simple_gla(q, k, v, g), naive.recurrence(q, k, v, g), inputs)


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("strength", [1 / 16, 1.0, 30.0])
def test_gla_equals_its_recurrence_even_for_strong_gates(tokens, strength):
    inputs = [*qkv(tokens, dv=5), tensors((2, tokens, 3, 8), seed=4)[0].requires_grad_()]
    q, k, v, x = inputs
    g = F.logsigmoid(x) * strength
    assert_same(ops.gla(q, k, v, g), naive.recurrence(q, k, v, g), inputs)


@pytest.mark.parametrize("tokens", LENGTHS)
def test_the_gated_delta_rule_equals_its_recurrence(tokens):
    inputs = [*qkv(tokens, dv=5), *(t.requires_grad_() for t in tensors((2, tokens, 3), (2, tokens, 3), seed=4))]
    q, k, v, x, y = inputs
    k, g, beta = F.normalize(k, dim=-1), F.logsigmoid(x), y.sigmoid()
    assert_same(ops.gated_delta_rule(q, k, v, g, beta), naive.recurrence(q, k, v, g, beta), inputs)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("tokens", [1, 17, 65])
def test_ssd_equals_its_recurrence(tokens, groups):
    shapes = [(2, tokens, 4, 6), (2, tokens, 4), (4,), (2, tokens, groups, 5), (2, tokens, groups, 5), (4,)]
    inputs = [t.requires_grad_() for t in tensors(*shapes)]
    x, dt, a, b, c, d = inputs
    arguments = (x, F.softplus(dt), -a.exp(), b, c, d)
    assert_same(ops.ssd(*arguments), naive.ssd(*arguments), inputs)


def cut_anywhere(function, arguments, cuts):
    state, parts = None, []
    for begin, end in zip([0, *cuts], [*cuts, arguments[0].shape[1]]):
        part, state = function(*(a[:, begin:end] if a.dim() > 2 else a for a in arguments), state=state)
        parts.append(part)
    return torch.cat(parts, 1), state


@pytest.mark.parametrize("cuts", [[1, 2, 3], [64], [5, 70]])
def test_a_sequence_may_come_in_pieces_and_token_by_token(cuts):
    q, k, v, gates, vectors = tensors(*[(2, 81, 3, 8)] * 3, (2, 81, 3), (2, 81, 3, 8))
    g, gk, beta = F.logsigmoid(gates), F.logsigmoid(vectors), gates.sigmoid()
    unit = F.normalize(k, dim=-1)
    b, c = k[:, :, :1], q[:, :, :1]
    cases = [
        (ops.causal_linear_attention, (q, k, v)), (ops.retention, (q, k, v)), (ops.simple_gla, (q, k, v, g)),
        (ops.gla, (q, k, v, gk)), (ops.gated_delta_rule, (q, unit, v, g, beta)),
        (ops.ssd, (v, beta, -torch.ones(3), b, c)),
    ]  # fmt: skip
    for function, arguments in cases:
        whole = function(*arguments)
        for got, want in zip(cut_anywhere(function, arguments, cuts), whole):
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("chunk", [16, 32, 128])
def test_the_chunk_length_changes_nothing(chunk):
    q, k, v, x = tensors(*[(2, 81, 3, 8)] * 4)
    g = F.logsigmoid(x)
    torch.testing.assert_close(ops.gla(q, k, v, g, chunk=chunk), ops.gla(q, k, v, g))
    one = g[..., 0].contiguous()
    torch.testing.assert_close(ops.simple_gla(q, k, v, one, chunk=chunk), ops.simple_gla(q, k, v, one))
    k = F.normalize(k, dim=-1)
    torch.testing.assert_close(
        ops.gated_delta_rule(q, k, v, one, one.exp(), chunk=chunk), ops.gated_delta_rule(q, k, v, one, one.exp())
    )


def test_low_precision_inputs_keep_their_type_and_an_f32_state():
    q, k, v, x = tensors(*[(2, 81, 3, 8)] * 4, dtype=torch.bfloat16)
    for function in (ops.gla, ops.causal_linear_attention, ops.retention):
        arguments = (q, k, v, F.logsigmoid(x)) if function is ops.gla else (q, k, v)
        o, state = function(*arguments)
        exact, _ = function(*(a.double() for a in arguments))
        assert o.dtype == torch.bfloat16 and state.dtype == torch.float32
        assert (o - exact).norm() <= 2**-8 * exact.norm()  # only the result is rounded


BIDIRECTIONAL = {
    "softmax_attention": (lambda q, k, v: ops.softmax_attention(q, k, v), naive.softmax),
    "linear_attention": (lambda q, k, v: ops.linear_attention(q, k, v), naive.linear),
    "inline_attention": (lambda q, k, v: ops.inline_attention(q, k, v), naive.inline),
    "focused_attention": (
        lambda q, k, v: ops.focused_attention(q, k, v, q.new_zeros(1, 1, 96)),
        lambda q, k, v: naive.focused(q, k, v, q.new_zeros(1, 1, 96)),
    ),
    "rala": (lambda q, k, v: ops.rala(q, k, v, (6, 6)), lambda q, k, v: naive.rala(q, k, v, (6, 6))),
    "mala": (lambda q, k, v: ops.mala(q, k, v, (6, 6)), lambda q, k, v: naive.mala(q, k, v, (6, 6))),
}


@pytest.mark.parametrize("tokens", [1, 15, 16, 36, 101])
@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_f32_equals_the_definition_at_any_length(name, tokens, device):
    """Linear ones go through the attention operator."""
    ours, definition = BIDIRECTIONAL[name]
    if name in ("rala", "mala"):
        grid = (6, 6) if tokens == 36 else (1, tokens)
        ours, definition = (lambda q, k, v, f=f: f(q, k, v, grid) for f in (getattr(ops, name), getattr(naive, name)))
    shapes = [(2, tokens, 3, 32)] * 3
    inputs = [t.requires_grad_() for t in tensors(*shapes)]
    single = [t.detach().to(device, torch.float32).requires_grad_() for t in inputs]
    (weight,) = tensors(shapes[0], seed=9)
    exact, got = definition(*inputs), ours(*single)
    for a, b in zip([got, *torch.autograd.grad(got, single, weight.to(device, torch.float32))],
                    [exact, *torch.autograd.grad(exact, inputs, weight)]):
        assert (a.cpu().double() - b).norm() <= 2e-5 * b.norm() + 1e-5


@pytest.mark.parametrize("queries,keys", [(40, 7), (4100, 7), (17, 4100)])
def test_linear_attention_takes_other_keys_than_queries(queries, keys, device):
    """Long sequences are cut into 16 blocks."""
    q, k, v = (t.to(device, torch.float32) for t in tensors((1, queries, 2, 8), (1, keys, 2, 8), (1, keys, 2, 5)))
    want = naive.linear(q.double(), k.double(), v.double())
    torch.testing.assert_close(ops.linear_attention(q, k, v).double(), want, rtol=1e-5, atol=1e-5)


def assert_equals_linear_attention(q, k, v, tolerance=1e-5):
    got, want = ops.linear_attention(q, k, v), naive.linear(q.double(), k.double(), v.double())
    assert got.dtype == q.dtype
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("one", [(1, 2, 3), (1, 2, 1), (2, 1, 3), (2, 1, 1)], ids=str)
def test_keys_and_values_may_be_shared_by_samples_and_heads(one, device):
    """The operator wants as many of each."""
    k_batch, v_batch, heads = one
    q, k, v = tensors((2, 9, 3, 8), (k_batch, 7, heads, 8), (v_batch, 7, 3, 5))
    spread = (k.expand(2, -1, 3, -1), v.expand(2, -1, -1, -1))
    for function in (ops.linear_attention, ops.inline_attention):
        want = function(q, *spread)
        got = function(*(t.to(device, torch.float32) for t in (q, k, v)))
        torch.testing.assert_close(got.cpu().double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("types", [("float32", "bfloat16"), ("bfloat16", "float32"), ("float16", "bfloat16")], ids=str)
def test_values_may_be_of_another_type_than_queries(types, device):
    first, second = (getattr(torch, name) for name in types)
    q, k, v = (t.to(device) for t in tensors((2, 9, 3, 8), (2, 7, 3, 8), (2, 7, 3, 5)))
    tolerance = 1e-5 if first == torch.float32 else 2**-7
    assert_equals_linear_attention(q.to(first), k.to(first), v.to(second), tolerance)


@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_nothing_attends_to_nothing(name, device):
    if name in ("rala", "mala"):
        function = lambda q, k, v: getattr(ops, name)(q, k, v, ())  # noqa: E731
    else:
        function, _ = BIDIRECTIONAL[name]
    empty = torch.zeros(2, 0, 3, 32, device=device)
    assert function(empty, empty, empty).shape == empty.shape


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 20, 2, 264), (65536, 3, 1, 8)], ids=str)
def test_cuda_takes_what_is_too_large_for_the_operator(shape, dtype):
    q, k, v = (t.cuda() for t in tensors(*[shape] * 3, dtype=dtype))
    assert_equals_linear_attention(q, k, v, 1e-4 if dtype == torch.float32 else 2**-6)


# What is one kernel each way on a GPU, [2, 15, 2, 16] to the same shape
KERNELS = {
    "focused": lambda x: ops.focused(x, x.new_zeros(1, 1, 32)),
    "rotary": lambda x: ops.rotary_grid(x, (3, 5)),
    "grid_convolution": lambda x: ops.grid_convolution(x, (3, 5), x.new_full((32, 1, 3, 3), 0.1)),
    "norm": lambda x: ops.modulated_norm(x.flatten(2)).view_as(x),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_gradient_may_begin_beside_a_multiple_of_16_bytes(name, device):
    x = tensors((2, 15, 2, 16), dtype=torch.float32)[0].to(device).requires_grad_()
    shifted = torch.randn(x.numel() + 2, device=device)[2:].view_as(x)
    got, want = (torch.autograd.grad(KERNELS[name](x), x, d)[0] for d in (shifted, shifted.clone()))
    torch.testing.assert_close(got, want)


@needs_cuda
@pytest.mark.parametrize("name", KERNELS)
def test_cuda_kernels_refuse_double_backward(name):
    x = tensors((2, 15, 2, 16), dtype=torch.float32)[0].cuda().requires_grad_()
    (first,) = torch.autograd.grad(KERNELS[name](x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=f"mhla.{name}. double backward is not supported"):
        torch.autograd.grad(first.sum(), x)


@pytest.mark.parametrize("power", [1.0, 12.0, 16.0, 40.0])
def test_even_rows_stay_as_they_are_whatever_the_power(power, device):
    """Squares of high powers of 1024 numbers whose length is 1 are no f32."""
    x, scale = torch.ones(1, 3, 8, 128, device=device), torch.zeros(1, 1, 1024, device=device)
    torch.testing.assert_close(ops.focused(x, scale, power), (x + 1e-6) / torch.log(torch.tensor(2.0)).item())


def test_under_autocast_inputs_are_cast_as_the_operator_casts_its_own(device):
    q, k, v = (t.to(device, torch.float32) for t in tensors(*[(2, 36, 3, 32)] * 3))
    low = [t.bfloat16() for t in (q, k, v)]
    with torch.autocast(device, torch.bfloat16):
        for mixed in ((q, k, v), (q, k, low[2])):
            torch.testing.assert_close(ops.linear_attention(*mixed), ops.linear_attention(*low), rtol=0, atol=0)


class Call(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.function, self.rest = getattr(ops, name), [()] if name in ("rala", "mala") else []
        if name == "focused_attention":
            self.rest = [torch.zeros(1, 1, 16)]

    def forward(self, q, k, v):
        return self.function(q, k, v, *self.rest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("other_keys", [False, True])
@pytest.mark.parametrize("name", [name for name in BIDIRECTIONAL if name != "softmax_attention"])
def test_an_exported_program_takes_any_number_of_tokens(name, other_keys, dtype):
    """4096 tokens or more are cut into blocks on a CPU where their number is known."""

    def inputs(queries, keys):
        return tuple(tensors((1, queries, 2, 8), (1, keys, 2, 8), (1, keys, 2, 5), dtype=dtype))

    n = torch.export.Dim("n", min=2)
    m = torch.export.Dim("m", min=2) if other_keys else n
    call = Call(name)
    program = torch.export.export(call, inputs(20, 24 if other_keys else 20), dynamic_shapes=({1: n}, {1: m}, {1: m}))
    lowered = program.run_decompositions()
    for queries, keys in [(7, 5), (30, 30), (4100, 5000)]:
        arguments = inputs(queries, keys if other_keys else queries)
        for module in (program.module(), lowered.module()):
            torch.testing.assert_close(module(*arguments), call(*arguments), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_low_precision_errs_at_most_twice_as_much_as_the_definition(name, dtype, device):
    ours, definition = BIDIRECTIONAL[name]

    def result(function, to):
        leaves = [t.to(dtype).to(device, to).requires_grad_() for t in tensors(*[(2, 36, 3, 32)] * 3)]
        o = function(*leaves)
        return [o, *torch.autograd.grad(o, leaves, torch.ones_like(o).cumsum(1).remainder(7).sub(3))]

    exact = result(definition, torch.float64)
    for got, plain, want in zip(result(ours, dtype), result(definition, dtype), exact):
        assert got.dtype == dtype
        assert (got - want).norm() <= 2 * (plain - want).norm()


def test_autocast_leaves_the_recurrence_in_f32():
    q, k, v, x = tensors(*[(2, 81, 3, 8)] * 4, dtype=torch.float32)
    g = F.logsigmoid(x)
    with torch.autocast("cpu", torch.bfloat16):
        inside = ops.gla(q, k, v, g)
    torch.testing.assert_close(inside, ops.gla(q, k, v, g), rtol=0, atol=0)


def test_rotary_turns_halves_by_position():
    (x,) = tensors((1, 7, 2, 6))
    j = torch.arange(3, dtype=torch.float64)
    angle = (torch.arange(7, dtype=torch.float64)[:, None] * 10000 ** (-2 * j / 6))[:, None]
    z = torch.complex(x[..., :3], x[..., 3:]) * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(ops.rotary(x), torch.cat([z.real, z.imag], -1))
    torch.testing.assert_close(ops.rotary(x[:, 4:], offset=torch.tensor(4)), ops.rotary(x)[:, 4:])


def test_grid_rotary_equals_its_definition():
    (x,) = tensors((1, 15, 2, 8))
    torch.testing.assert_close(ops.rotary_grid(x, (3, 5)), naive.turn_on_grid(x, (3, 5)))


def test_axial_rotary_divides_the_pairs_among_the_axes():
    (x,) = tensors((1, 24, 2, 16))  # 8 pairs: 4 + 2 + 2
    places = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float64) for n in (2, 3, 4)))
    shares = [4, 2, 2]
    angle = torch.cat(
        [places[:, i, None] * 10000 ** (-torch.arange(n, dtype=torch.float64) / n) for i, n in enumerate(shares)], -1
    )[:, None]
    z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(ops.rotary_axes(x, (2, 3, 4)), torch.view_as_real(z).flatten(-2))


@pytest.mark.parametrize("op", [ops.rotary_grid, ops.rotary_axes])
def test_rotary_takes_tensors_and_gradients_from_anywhere(op):
    shape, count = (2, 6, 1, 8), 96
    x, gradient = torch.randn(count + 1)[1:].view(shape), torch.randn(count + 1)[1:].view(shape)
    assert x.storage_offset() == gradient.storage_offset() == 1
    leaf = x.clone().requires_grad_()
    aligned, = torch.autograd.grad(op(leaf, (2, 3)), leaf, gradient.clone())
    torch.testing.assert_close(op(x, (2, 3)), op(leaf.detach(), (2, 3)), rtol=0, atol=0)
    x.requires_grad_()
    ours, = torch.autograd.grad(op(x, (2, 3)), x, gradient)
    torch.testing.assert_close(ours, aligned, rtol=0, atol=0)


@pytest.mark.parametrize("op", [ops.rotary_grid, ops.rotary_axes])
def test_a_grid_that_does_not_fit_the_tokens_is_refused(op):
    with pytest.raises(RuntimeError, match="expected 12 tokens"):
        op(torch.randn(1, 15, 2, 8), (3, 4))


def test_short_convolution_is_causal_and_continues():
    x, weight, bias = tensors((2, 9, 6), (6, 1, 4), (6,))
    y, state = ops.short_convolution(x, weight, bias)
    for t in range(9):
        window = F.pad(x, (0, 0, 3, 0))[:, t : t + 4]
        torch.testing.assert_close(y[:, t], F.silu(torch.einsum("bkc,ck->bc", window, weight[:, 0]) + bias))
    first, middle = ops.short_convolution(x[:, :2], weight, bias)
    second, last = ops.short_convolution(x[:, 2:], weight, bias, middle)
    torch.testing.assert_close(torch.cat([first, second], 1), y)
    torch.testing.assert_close(last, state)


def test_gates_and_norms_equal_their_definitions():
    o, gate, weight = tensors((2, 5, 3, 4), (2, 5, 3, 4), (4,))
    norm = o / (o.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    torch.testing.assert_close(ops.gated_head_norm(o, gate, weight), norm * F.silu(gate))
    torch.testing.assert_close(ops.gated_head_norm(o, None, weight), norm)
    y = o * F.silu(gate)
    expected = y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    torch.testing.assert_close(ops.gate_then_norm(o, gate, weight), expected)


@pytest.mark.parametrize("grid", [(3, 4), (2, 2, 3)])
@pytest.mark.parametrize("shared", [False, True])
def test_grid_convolution_is_depthwise_on_the_grid(grid, shared):
    axes = len(grid)
    channels = 5 if shared else 10
    v, weight, bias = tensors((2, 12, 2, 5), (channels, 1, *[3] * axes), (channels,))
    got = ops.grid_convolution(v, grid, weight, bias)
    convolve = F.conv2d if axes == 2 else F.conv3d
    for head in range(2):
        part = slice(None) if shared else slice(5 * head, 5 * head + 5)
        picture = v[:, :, head].reshape(2, *grid, 5).movedim(-1, 1)
        expected = convolve(picture, weight[part], bias[part], padding=1, groups=5)
        torch.testing.assert_close(got[:, :, head], expected.movedim(1, -1).reshape(2, 12, 5))


def compiled_cases():
    q, k, v, x = tensors(*[(2, 81, 3, 8)] * 4, dtype=torch.float32)
    g = F.logsigmoid(x)
    yield lambda q, k, v: ops.gla(q, k, v, g)[0], (q, k, v)
    yield lambda q, k, v: ops.gated_delta_rule(q, F.normalize(k, dim=-1), v, g[..., 0], g[..., 0].exp())[0], (q, k, v)
    yield lambda q, k, v: ops.retention(ops.rotary(q), k, v)[0], (q, k, v)
    yield lambda q, k, v: ops.mala(q, k, v, (9, 9)), (q, k, v)
    yield lambda q, k, v: ops.inline_attention(q, k, v), (q, k, v)
    yield lambda q, k, v: ops.linear_attention(q, k, v), (q, k, v)


@pytest.mark.parametrize("index", range(6))
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_functions_compile_without_breaks(index, dynamic):
    function, arguments = list(compiled_cases())[index]
    arguments = [a.clone().requires_grad_() for a in arguments]
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    got, want = compiled(*arguments), function(*arguments)
    torch.testing.assert_close(got, want)
    for a, b in zip(torch.autograd.grad(got.sum(), arguments), torch.autograd.grad(want.sum(), arguments)):
        torch.testing.assert_close(a, b)
