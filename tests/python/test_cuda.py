"""What only a GPU can show: CUDA graphs, streams, low precision, layers and states on the device."""

import dense
import pytest
import test_baseline_modules as baselines
import test_mhla_layer as mhla_layer
import torch
from conftest import needs_cuda

import mhla
from mhla.nn import MHLA

pytestmark = needs_cuda

@pytest.fixture(autouse=True)
def no_tf32(monkeypatch):
    """Convolutions of f32 would round their inputs."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


LAYOUT = mhla.Grid((16, 16), block=(4, 4))


def tensors(dtype=torch.bfloat16, batch=2, heads=3, width=64, seed=0):
    """q, k, v as slices of one projection, mixing, and a gradient of the output"""
    generator = torch.Generator().manual_seed(seed)
    fused = torch.randn(batch, 256, 3, heads, width, generator=generator).to("cuda", dtype)
    d_o = torch.randn(batch, 256, heads, width, generator=generator).to("cuda", dtype)
    mixing = (torch.rand(16, 16, generator=generator) + 0.1).cuda()
    return [*fused.unbind(2), mixing], d_o


def with_gradients(call, inputs, d_o):
    leaves = [t.detach().requires_grad_() for t in inputs]
    o = call(*leaves)
    return [o.detach(), *torch.autograd.grad(o, leaves, d_o)]


def attention(q, k, v, mixing, **options):
    return mhla.attention(q, k, v, mixing, layout=LAYOUT, **options)


@pytest.mark.parametrize("normalizer", ["exact", "shared_position", "none"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_is_at_most_twice_as_wrong_as_the_plain_formula(normalizer, dtype):
    options = dict(normalizer=normalizer, scale=1 / 64) if normalizer == "none" else dict(normalizer=normalizer)
    inputs, d_o = tensors(dtype)

    def plain(q, k, v, mixing):
        return dense.attention(q, k, v, mixing.to(q.dtype), LAYOUT.size, LAYOUT.block, **options)

    mine = with_gradients(lambda *t: attention(*t, **options), inputs, d_o)
    naive = with_gradients(plain, inputs, d_o)
    exact = with_gradients(plain, [t.double() for t in inputs], d_o.double())
    for got, rough, want in zip(mine, naive, exact):
        scale = want.abs().max()
        error, allowed = ((x.double() - want).abs().max() / scale for x in (got, rough))
        assert error <= 2 * allowed + 1e-6, (error, allowed)


def test_calls_are_bitwise_repeatable():
    inputs, d_o = tensors()
    first = with_gradients(attention, inputs, d_o)
    for again in (with_gradients(attention, inputs, d_o) for _ in range(3)):
        assert all(torch.equal(a, b) for a, b in zip(first, again))


def test_no_call_waits_for_the_device():
    inputs, d_o = tensors()
    with_gradients(attention, inputs, d_o)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with_gradients(attention, inputs, d_o)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_call_runs_on_the_stream_that_is_current():
    inputs, d_o = tensors()
    other, _ = tensors(seed=7)
    want = with_gradients(attention, other, d_o)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # long enough that a call on another stream would read too early
        for mine, new in zip(inputs, other):
            mine.copy_(new)
        got = with_gradients(attention, inputs, d_o)
    stream.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(got, want))


def test_a_captured_graph_computes_what_eager_calls_do():
    inputs, d_o = tensors()
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # the first call of a shape makes its plan
        torch.autograd.grad(attention(*leaves), leaves, d_o)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = attention(*leaves)
        gradients = torch.autograd.grad(o, leaves, d_o)
    for seed in (1, 2):
        fresh, _ = tensors(seed=seed)
        with torch.no_grad():
            for leaf, new in zip(leaves, fresh):
                leaf.copy_(new)
        graph.replay()
        want = with_gradients(attention, leaves, d_o)
        assert all(torch.equal(a, b) for a, b in zip([o, *gradients], want))


@pytest.mark.parametrize("task", ["classification", "dit"])
def test_make_graphed_callables_takes_the_layer(task):
    torch.manual_seed(0)
    made = MHLA(192, 3, LAYOUT, preset="authors", task=task, dropout=0.0).cuda().to(torch.bfloat16)
    made.mixing.data = made.mixing.data.float()
    x = torch.randn(2, 256, 192, device="cuda", dtype=torch.bfloat16)
    parameters = list(made.parameters())

    def run(layer):
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        return [y.detach().clone(), *(g.clone() for g in torch.autograd.grad(y.float().square().sum(), [leaf, *parameters]))]

    want = run(made)
    graphed = torch.cuda.make_graphed_callables(made, (x.clone().requires_grad_(),))
    for a, b in zip(run(graphed), want):
        torch.testing.assert_close(a, b)


def test_inductor_compiles_the_layer():
    torch._dynamo.reset()
    torch.manual_seed(0)
    made = MHLA(192, 3, LAYOUT, preset="authors", task="dit", dropout=0.0).cuda()
    compiled = torch.compile(made, fullgraph=True)
    x = torch.randn(2, 256, 192, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        want, got = made(x), compiled(x)
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    got.float().sum().backward()
    assert made.mixing.grad.dtype == torch.float32 and made.mixing.grad.isfinite().all()


@pytest.mark.parametrize("preset", ["paper", "authors"])
@pytest.mark.parametrize("task", list(mhla_layer.TASKS))
def test_the_layer_gives_on_the_device_what_it_gives_on_the_cpu(preset, task):
    made = mhla_layer.layer(preset, task)
    compare_devices(made, torch.randn(2, 64, mhla_layer.DIM))


@baselines.layers
def test_a_baseline_gives_on_the_device_what_it_gives_on_the_cpu(name, options, tokens):
    compare_devices(baselines.build(name, options), baselines.picture(tokens))


def compare_devices(layer, x):
    """values and gradients, f32"""
    results = []
    for device in ("cpu", "cuda"):
        here, parameters = layer.to(device), list(layer.parameters())
        leaf = x.to(device).requires_grad_()
        y = here(leaf)
        gradients = torch.autograd.grad(y.square().mean(), [leaf, *parameters], allow_unused=True)
        results.append([y.detach().cpu(), *(g.cpu() for g in gradients if g is not None)])
    assert len(results[0]) == len(results[1])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * a.abs().max().item() + 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_steps_on_the_device_give_what_one_call_gives(dtype):
    made = mhla_layer.layer("authors", "language").to("cuda", dtype)
    x = torch.randn(2, 50, mhla_layer.DIM, device="cuda", dtype=dtype)
    with torch.no_grad():
        whole = made(x)
    state = made.init_state(batch=2)
    pieces = [made.step(x[:, :19], state)[0]]
    branch = state.fork()
    pieces += [made.step(x[:, t : t + 1], state)[0] for t in range(19, 40)]
    pieces.append(made.step(x[:, 40:], state)[0])
    close = dict(rtol=1e-4, atol=1e-5) if dtype == torch.float32 else dict(rtol=5e-2, atol=5e-2)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, **close)
    torch.testing.assert_close(made.step(x[:, 19:], branch)[0], whole[:, 19:], **close)
    state.rewind(32)
    torch.testing.assert_close(made.step(x[:, 32:], state)[0], whole[:, 32:], **close)


def test_tensors_of_two_devices_are_refused():
    (q, k, v, mixing), _ = tensors()
    with pytest.raises(RuntimeError, match="cpu"):
        attention(q, k, v, mixing.cpu())
    with pytest.raises(RuntimeError, match="cpu"):
        attention(q, k.cpu(), v, mixing)
