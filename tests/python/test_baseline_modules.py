"""The layers of the baselines: the same bits in C++, causal where they say so, upstream's names."""

from __future__ import annotations

import cpp_layers
import mhla
import naive_attention as naive
import pytest
import torch
import torch.nn.functional as F

@pytest.fixture(autouse=True)
def one_thread():
    """Threads of a busy machine wait for each other longer than these small tensors take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


WIDTH = dict(dim=32, heads=4)
PICTURE = dict(**WIDTH, grid=(3, 5))
VIDEO = dict(**WIDTH, grid=(2, 2, 3), task="video")
# name, options, tokens
LAYERS = [
    ("softmax", WIDTH, 15),
    ("softmax", dict(**WIDTH, task="dit", qkv_bias=False), 15),
    ("softmax", VIDEO, 12),
    ("softmax", dict(**PICTURE, task="vlt"), 15),
    ("softmax", dict(**WIDTH, task="language"), 83),
    ("linear", WIDTH, 15),
    ("linear", dict(**WIDTH, task="dit"), 15),
    ("linear", dict(**WIDTH, task="text_to_image"), 15),
    ("linear", VIDEO, 12),
    ("linear", dict(**WIDTH, task="language"), 83),
    ("focused", PICTURE, 15),
    ("focused", dict(**PICTURE, kernel=3, power=2.0, qkv_bias=False), 15),
    ("inline", PICTURE, 15),
    ("inline", dict(**PICTURE, class_token=True), 16),
    ("rala", PICTURE, 15),
    ("mala", PICTURE, 15),
    ("retnet", WIDTH, 83),
    ("gla", WIDTH, 83),
    ("gla", dict(**WIDTH, expand_k=1.0, gate_rank=4, gate_normalizer=2.0, chunk=16), 40),
    ("simple_gla", WIDTH, 83),
    ("gated_deltanet", WIDTH, 83),
    ("gated_deltanet", dict(**WIDTH, head_dim=8, expand_v=1.5, conv_size=3, chunk=32), 83),
    ("mamba2", dict(**WIDTH, state_size=24), 83),
    ("mamba2", dict(dim=32, heads=8, groups=2, expand=4, state_size=8), 83),
]
CAUSAL = [layer for layer in LAYERS if layer[2] in (40, 83)]
layers = pytest.mark.parametrize("name,options,tokens", LAYERS, ids=lambda v: str(v).replace(" ", ""))
causal_layers = pytest.mark.parametrize("name,options,tokens", CAUSAL, ids=lambda v: str(v).replace(" ", ""))


def build(name, options, dtype=torch.float32):
    """A layer with no parameter left at a special value, so that each of them matters."""
    torch.manual_seed(0)
    layer = mhla.nn.make_attention(name, **options).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator).to(dtype)
    return layer


def picture(tokens, dim=32, dtype=torch.float32):
    return torch.randn(2, tokens, dim, generator=torch.Generator().manual_seed(2)).to(dtype)


def parts(layer):
    names, values = zip(*layer.named_parameters())
    return list(names), list(values)


def assert_same_bits(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@layers
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_python_and_cpp_agree_to_the_last_bit(name, options, tokens, dtype):
    cpp = cpp_layers.ops()
    layer, x = build(name, options, dtype), picture(tokens, dtype=dtype)
    with torch.no_grad():
        assert_same_bits(cpp.run_module(name, cpp_layers.text(options), *parts(layer), x), layer(x))


@layers
def test_their_gradients_agree_to_the_last_bit(name, options, tokens):
    cpp = cpp_layers.ops()
    layer, x = build(name, options), picture(tokens).requires_grad_()
    weight = picture(tokens).flip(1)
    (layer(x) * weight).sum().backward()
    names, values = parts(layer)
    theirs = cpp.module_gradients(name, cpp_layers.text(options), names, values, x, weight)
    for got, want in zip(theirs, [*(p.grad for p in values), x.grad]):
        assert_same_bits(got, want)


@layers
def test_they_start_with_the_same_numbers_under_the_same_names(name, options, tokens):
    cpp = cpp_layers.ops()
    torch.manual_seed(3)
    layer = mhla.nn.make_attention(name, **options)
    torch.manual_seed(3)
    names, values = cpp.parameter_names(name, cpp_layers.text(options)), None
    torch.manual_seed(3)
    values = dict(zip(names, cpp.initial_parameters(name, cpp_layers.text(options))))
    assert sorted(names) == sorted(n for n, _ in layer.named_parameters())
    for each, parameter in layer.named_parameters():
        assert_same_bits(values[each], parameter.detach())


@causal_layers
def test_steps_equal_one_pass_in_python_and_in_cpp(name, options, tokens):
    layer, x = build(name, options, torch.float64), picture(tokens, dtype=torch.float64)
    pieces = [x[:, :7], *x[:, 7:12].split(1, 1), x[:, 12:]]
    state, outputs = layer.init_state(batch=2), []
    with torch.no_grad():
        for piece in pieces:
            y, state = layer.step(piece, state)
            outputs.append(y)
        whole = layer(x)
        torch.testing.assert_close(torch.cat(outputs, 1), whole, rtol=1e-9, atol=1e-9)
        cpp = cpp_layers.ops()
        assert_same_bits(cpp.step_module(name, cpp_layers.text(options), *parts(layer), pieces), torch.cat(outputs, 1))


@causal_layers
def test_causal_layers_do_not_see_the_future(name, options, tokens):
    layer, x = build(name, options, torch.float64), picture(tokens, dtype=torch.float64)
    other = x.clone()
    other[:, 30:] += 1
    with torch.no_grad():
        a, b = layer(x), layer(other)
    torch.testing.assert_close(a[:, :30], b[:, :30], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(a[:, 30:], b[:, 30:])


@layers
def test_every_parameter_gets_a_gradient_and_the_layer_learns(name, options, tokens):
    layer, x = build(name, options), picture(tokens)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)
    losses = []
    for _ in range(10):
        loss = F.mse_loss(layer(x), x.flip(-1))
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
        losses.append(loss.item())
        optimizer.step()
    assert losses[-1] < losses[0]


@layers
def test_layers_run_under_autocast_and_compile(name, options, tokens):
    torch._dynamo.reset()  # its limit of recompilations counts all layers together
    layer, x = build(name, options), picture(tokens)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        low = layer(x)
    with torch.no_grad():
        high = layer(x)
        torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), high)
    assert (low - high).norm() < 0.05 * high.norm()


NAMES = {
    "softmax": "qkv.weight qkv.bias proj.weight proj.bias",
    "linear": "to_qkv.weight q_norm.weight k_norm.weight to_out.0.weight to_out.0.bias",
    "focused": "positional_encoding scale qkv.weight qkv.bias proj.weight proj.bias dwc.weight dwc.bias",
    "inline": "qkv.weight qkv.bias proj.weight proj.bias residual.0.weight residual.0.bias residual.2.weight "
    "residual.2.bias",
    "rala": "qkvo.weight qkvo.bias lepe.weight lepe.bias proj.weight proj.bias",
    "mala": "qkvo.weight qkvo.bias lepe.weight lepe.bias proj.weight proj.bias",
    "retnet": "q_proj.weight k_proj.weight v_proj.weight g_proj.weight o_proj.weight g_norm_swish_gate.weight",
    "gla": "q_proj.weight k_proj.weight v_proj.weight g_proj.weight o_proj.weight g_norm_swish_gate.weight "
    "gk_proj.0.weight gk_proj.1.weight gk_proj.1.bias",
    "simple_gla": "q_proj.weight k_proj.weight v_proj.weight g_proj.weight o_proj.weight g_norm_swish_gate.weight "
    "gk_proj.weight gk_proj.bias",
    "gated_deltanet": "A_log dt_bias q_proj.weight k_proj.weight v_proj.weight a_proj.weight b_proj.weight "
    "q_conv1d.weight k_conv1d.weight v_conv1d.weight g_proj.weight o_norm.weight o_proj.weight",
    "mamba2": "dt_bias A_log D in_proj.weight conv1d.weight conv1d.bias norm.weight out_proj.weight",
}


@pytest.mark.parametrize("name", NAMES)
def test_parameters_have_the_names_of_upstream(name):
    options = PICTURE if name in ("focused", "inline", "rala", "mala") else WIDTH
    layer = mhla.nn.make_attention(name, **options)
    assert {n for n, _ in layer.named_parameters()} == set(NAMES[name].split())


@pytest.mark.parametrize("name", ["rala", "mala"])
def test_a_gated_grid_layer_is_what_the_spec_says(name):
    layer, x = build(name, PICTURE, torch.float64), picture(15, dtype=torch.float64)
    q, k, v, gate = F.conv2d(x.mT.unflatten(-1, (3, 5)), layer.qkvo.weight, layer.qkvo.bias).chunk(4, 1)
    local = F.conv2d(v, layer.lepe.weight, layer.lepe.bias, padding=2, groups=32)
    heads = [t.flatten(2).mT.unflatten(-1, (4, 8)) for t in (q, k, v)]
    o = getattr(naive, name)(*heads, (3, 5)).flatten(2).mT.unflatten(-1, (3, 5)) + local
    expected = F.conv2d(o * gate, layer.proj.weight, layer.proj.bias).flatten(2).mT
    torch.testing.assert_close(layer(x), expected)


def test_focused_attention_is_what_the_spec_says():
    layer, x = build("focused", PICTURE, torch.float64), picture(15, dtype=torch.float64)
    q, k, v = layer.qkv(x).chunk(3, -1)
    q, k, v = (t.unflatten(-1, (4, 8)) for t in (q, k + layer.positional_encoding, v))
    o = naive.focused(q, k, v, layer.scale)
    for head in range(4):
        grid = v[:, :, head].mT.unflatten(-1, (3, 5))
        o[:, :, head] += F.conv2d(grid, layer.dwc.weight, layer.dwc.bias, padding=2, groups=8).flatten(2).mT
    torch.testing.assert_close(layer(x), layer.proj(o.flatten(2)))


def test_inline_attention_is_what_the_spec_says():
    layer, x = build("inline", dict(**PICTURE, class_token=True), torch.float64), picture(16, dtype=torch.float64)
    q, k, v = (t.unflatten(-1, (4, 8)) for t in layer.qkv(x).chunk(3, -1))
    o = naive.inline(q, k, v).flatten(2)
    for b in range(2):
        mean = x[b].mean(0).view(4, 8)
        first, second = (layer.residual[i] for i in (0, 2))
        hidden = torch.einsum("hi,hoi->ho", mean, first.weight.view(4, 8, 8)) + first.bias.view(4, 8)
        kernel = torch.einsum("hi,hoi->ho", F.gelu(hidden), second.weight.view(4, 72, 8)) + second.bias.view(4, 72)
        grid = v[b, 1:].flatten(1).T.unflatten(-1, (3, 5))
        local = F.conv2d(grid[None], kernel.view(32, 1, 3, 3), padding=1, groups=32)[0]
        o[b, 1:] += local.flatten(1).T
    torch.testing.assert_close(layer(x), layer.proj(o))


def test_gla_is_what_the_spec_says():
    layer, x = build("gla", WIDTH, torch.float64), picture(83, dtype=torch.float64)
    q, k, v, g = (p(x).unflatten(-1, (4, -1)) for p in (layer.q_proj, layer.k_proj, layer.v_proj, layer.g_proj))
    alpha = torch.sigmoid(layer.gk_proj[1](layer.gk_proj[0](x))) ** (1 / 16)
    o, _ = naive.recurrence(q, k, v, alpha.log().unflatten(-1, (4, -1)))
    norm = o / (o.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.g_norm_swish_gate.weight
    torch.testing.assert_close(layer(x), layer.o_proj((norm * F.silu(g)).flatten(2)))


def test_the_gated_deltanet_is_what_the_spec_says():
    layer, x = build("gated_deltanet", WIDTH, torch.float64), picture(83, dtype=torch.float64)

    def stream(project, convolution):
        y = F.conv1d(F.pad(project(x).mT, (3, 0)), convolution.weight, groups=convolution.weight.shape[0])
        return F.silu(y).mT.unflatten(-1, (4, -1))

    q, k = stream(layer.q_proj, layer.q_conv1d), stream(layer.k_proj, layer.k_conv1d)
    q, k = (t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
    v, beta = stream(layer.v_proj, layer.v_conv1d), layer.b_proj(x).sigmoid()
    g = -layer.A_log.exp() * F.softplus(layer.a_proj(x) + layer.dt_bias)
    o, _ = naive.recurrence(q, k, v, g, beta)
    norm = o / (o.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.o_norm.weight
    gate = layer.g_proj(x).unflatten(-1, (4, -1))
    torch.testing.assert_close(layer(x), layer.o_proj((norm * F.silu(gate)).flatten(2)))


def test_learned_time_steps_start_in_their_range():
    for name in ("gated_deltanet", "mamba2"):
        layer = mhla.nn.make_attention(name, dim=512, heads=64)
        step = F.softplus(layer.dt_bias.detach())
        assert step.min() >= 0.00099 and step.max() <= 0.101
        assert layer.A_log.detach().exp().max() <= 16.001


def test_unknown_names_and_options_are_errors_that_name_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'gated_deltanet'"):
        mhla.nn.make_attention("gated_delta", dim=8, heads=2)
    with pytest.raises(ValueError, match="did you mean 'expand_k'"):
        mhla.nn.make_attention("gla", dim=8, heads=2, expandk=1)
    with pytest.raises(ValueError, match="did you mean 'language'"):
        mhla.nn.make_attention("softmax", dim=8, heads=2, task="languag")
    with pytest.raises(ValueError, match="does not divide into 3 heads"):
        mhla.nn.make_attention("softmax", dim=8, heads=3)
    with pytest.raises(NotImplementedError, match="only causal layers"):
        mhla.nn.make_attention("softmax", dim=8, heads=2).step(torch.zeros(1, 1, 8))


@pytest.mark.parametrize(
    "name,options,message",
    [
        ("gated_delta", "dim=8", "did you mean 'gated_deltanet'"),
        ("gla", "dim=8 heads=2 expandk=1", "did you mean 'expand_k'"),
        ("gla", "dim=8 heads=two", "heads: expected a number, got 'two'"),
        ("softmax", "dim=8 heads=2 task=x", "task: expected classification"),
        ("softmax", "dim=8 heads=3", "does not divide into 3 heads"),
        ("rala", "dim=8 heads=2 grid=8", "grid: expected 2 axes, got 1"),
    ],
)
def test_cpp_says_the_same(name, options, message):
    with pytest.raises(RuntimeError, match=message):
        cpp_layers.ops().parameter_names(name, options)


def test_python_and_cpp_know_the_same_layers():
    assert set(cpp_layers.ops().attention_names()) == {"mhla", *NAMES}
    assert set(mhla.nn.attention_names()) == {"mhla", *NAMES}


@pytest.mark.parametrize("preset", ["paper", "authors"])
@pytest.mark.parametrize(
    "options,layout,tokens",
    [
        (dict(task="classification"), dict(grid=(4, 6), block=(2, 3)), 24),
        (dict(task="dit", dropout=0.0, lepe=3), dict(grid=(5, 5), blocks=(2, 2)), 25),
        (dict(task="language", tokens=48), dict(block=16), 37),
        (
            dict(scale=0.5, eps=1e-3, clamp=(0.05, 0.2), clamp_in_forward=True, qk_norm="full", qk_norm_eps=1e-4),
            dict(grid=(4, 6), block=(2, 3)),
            24,
        ),
    ],
)
def test_mhla_has_a_name_too(preset, options, layout, tokens):
    cpp = cpp_layers.ops()
    options = dict(**WIDTH, preset=preset, **options)
    cut = {key: value for key, value in layout.items() if key != "grid"}
    python_layout = mhla.Grid(layout["grid"], **cut) if "grid" in layout else mhla.Sequence(**cut)
    layer, x = build("mhla", dict(options, layout=python_layout)), picture(tokens)
    with torch.no_grad():
        theirs = cpp.run_module("mhla", cpp_layers.text(dict(options, **layout)), *parts(layer), x)
        assert_same_bits(theirs, layer(x))
