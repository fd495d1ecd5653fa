"""torch.ops.mhla and mhla.attention: values, gradients, and everything PyTorch asks of an operator."""

import inspect
import subprocess
import sys
import warnings
import weakref
from pathlib import Path

import dense
import pytest
import torch

import mhla

GRIDS = [((8, 8), (4, 4)), ((6, 10), (3, 4)), ((3, 4, 5), (2, 2, 3))]


def inputs(tokens, *, batch=2, heads=3, dk=16, dv=16, dtype=torch.float32, device="cpu", seed=0):
    generator = torch.Generator().manual_seed(seed)
    fused = torch.randn(batch, tokens, 2 * heads * dk + heads * dv, generator=generator).to(device, dtype)
    parts = fused.split([heads * dk, heads * dk, heads * dv], -1)
    return [part.unflatten(-1, (heads, -1)) for part in parts]


def weights(count, device="cpu", seed=1):
    return (torch.rand(count, count, generator=torch.Generator().manual_seed(seed)) + 0.1).to(device)


@pytest.mark.parametrize("grid, block", GRIDS)
@pytest.mark.parametrize("normalizer", ["exact", "shared_position", "none"])
@pytest.mark.parametrize("mask", ["none", "block_causal"])
def test_attention_on_a_grid_equals_the_dense_formula(grid, block, normalizer, mask, device):
    layout = mhla.Grid(grid, block=block)
    q, k, v = inputs(layout.tokens, device=device)
    mixing = weights(layout.count(), device)
    o = mhla.attention(q, k, v, mixing, layout=layout, normalizer=normalizer, mask=mask)
    expected = dense.attention(
        *(t.cpu().double() for t in (q, k, v, mixing)), grid, block, normalizer=normalizer, mask=mask
    )
    torch.testing.assert_close(o.cpu().double(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("feature_map", ["relu_eps", "relu", "elu1", "identity"])
def test_gradients_equal_those_of_the_dense_formula(feature_map, device):
    layout = mhla.Sequence(block=8)
    q, k, v = (t.clone().requires_grad_() for t in inputs(29, dv=8, device=device))
    mixing = weights(4, device).requires_grad_()
    options = dict(mask="causal", normalizer="none", feature_map=feature_map, scale=0.25)
    mine = mhla.attention(q, k, v, mixing, layout=layout, **options)
    d_o = torch.randn(mine.shape, generator=torch.Generator().manual_seed(5))
    gradients = torch.autograd.grad(mine, (q, k, v, mixing), d_o.to(device))
    exact = [t.detach().cpu().double().requires_grad_() for t in (q, k, v, mixing)]
    expected = torch.autograd.grad(dense.attention(*exact, (29,), (8,), **options), exact, d_o.double())
    for got, want in zip(gradients, expected):
        torch.testing.assert_close(got.cpu().double(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:mhla")
@pytest.mark.parametrize("normalizer", ["exact", "shared_position", "none"])
@pytest.mark.parametrize("separate", [False, True])
def test_gradcheck_in_f64(normalizer, separate):
    if normalizer == "none" and separate:
        pytest.skip("there is no denominator")
    tensors = [t.clone().requires_grad_() for t in inputs(12, batch=1, heads=2, dk=3, dv=2, dtype=torch.float64)]
    mixing = weights(4).double().requires_grad_()
    den = [torch.rand(1, 12, 2, 3, dtype=torch.float64).add(0.2).requires_grad_() for _ in range(2)] if separate else []

    def call(q, k, v, m, *d):
        extra = dict(q_den=d[0], k_den=d[1]) if d else {}
        return mhla.attention(
            q, k, v, m, layout=mhla.Grid((4, 3), block=(2, 2)), normalizer=normalizer, feature_map="elu1", **extra
        )

    assert torch.autograd.gradcheck(call, (*tensors, mixing, *den))


def test_opcheck_finds_nothing(device):
    q, k, v = (t.clone().requires_grad_() for t in inputs(64, device=device))
    mixing = weights(4, device).requires_grad_()
    arguments = (q, k, v, mixing, None, None, [8, 8], [], "block=4x4")
    torch.library.opcheck(torch.ops.mhla.forward, arguments)
    o = torch.ops.mhla.forward(*arguments).detach()
    torch.library.opcheck(
        torch.ops.mhla.backward,
        (o, *(t.detach() for t in (q, k, v, mixing)), o, None, None, [8, 8], [], "block=4x4", [True] * 4 + [False] * 2),
    )


def test_the_short_call_leaves_what_is_no_plain_tensor_to_torch_ops(device):
    call = mhla._library.call
    assert call is not None, "src/python was not compiled"
    layout = mhla.Grid((8, 8), block=(4, 4))
    plain, keywords = (*inputs(64, device=device), weights(4, device)), dict(layout=layout)
    expected = torch.ops.mhla.forward(*plain, None, None, [8, 8], [], "block=4x4")
    assert torch.equal(call(plain, keywords), expected)
    assert torch.equal(call((torch.nn.Parameter(plain[0]), *plain[1:]), keywords), expected)
    assert call((*plain[:2], None, plain[3]), keywords) is None

    class Named(torch.Tensor):
        seen = 0

        @classmethod
        def __torch_function__(cls, function, types, arguments=(), options=None):
            cls.seen += function is torch.ops.mhla.forward.default
            return super().__torch_function__(function, types, arguments, options or {})

    named = (plain[0].as_subclass(Named), *plain[1:])
    assert call(named, keywords) is None
    o = mhla.attention(*named, layout=layout)
    assert type(o) is Named and Named.seen == 1 and torch.equal(o.as_subclass(torch.Tensor), expected)

    class Mode(torch.overrides.TorchFunctionMode):
        seen = 0

        def __torch_function__(self, function, types, arguments=(), options=None):
            self.seen += function is torch.ops.mhla.forward.default
            return function(*arguments, **(options or {}))

    with Mode() as mode:
        assert call(plain, keywords) is None
        assert torch.equal(mhla.attention(*plain, layout=layout), expected) and mode.seen == 1


def test_the_short_call_reads_arguments_as_the_function_does(device):
    call, signature = mhla._library.call, inspect.signature(mhla.attention)
    layout = mhla.Grid((8, 8), block=(4, 4))
    q, k, v = inputs(64, device=device)
    tensors = dict(q=q, k=k, v=v, mixing=weights(4, device))
    positional = tuple(tensors.values())
    expected = call(positional, dict(layout=layout))

    # every keyword is known, and its default is that of the function
    options = {name: p.default for name, p in signature.parameters.items() if p.kind is p.KEYWORD_ONLY} | dict(layout=layout)
    assert list(signature.parameters) == [*tensors, *options]
    for name, value in options.items():
        assert torch.equal(call(positional, {"layout": layout, name: value}), expected)
    assert torch.equal(call(positional, options), expected)
    assert torch.equal(call((), tensors | options), expected)
    assert torch.equal(call((q, k), dict(v=v, mixing=tensors["mixing"], layout=layout)), expected)

    # what it does not know or does not like is for Python
    for name in ("layout_k", "q_den", "k_den", "cu_seqlens", "local", "other"):
        assert call(positional, {"layout": layout, name: 8}) is None
    for arguments, keywords in (
        (positional, {}), (positional, dict(layout=None)), (positional, dict(layout=mhla.Grid)), (positional[:3], dict(layout=layout)),
        (positional, dict(layout=layout, q=q)), ((*positional, layout), {}), (positional, dict(layout=layout, mask=None)),
        (positional, dict(layout=layout, scale="1")), (positional, {8: layout}), (list(positional), dict(layout=layout)),
    ):  # fmt: skip
        assert call(arguments, keywords) is None
    assert call() is None and call(positional) is None
    with pytest.raises(RuntimeError, match="mask"):
        call(positional, dict(layout=layout, mask="some"))


def test_the_short_call_sees_other_options(device):
    tensors = (*inputs(64, device=device), weights(4, device))
    grid, sequence = mhla.Grid((8, 8), block=(4, 4)), mhla.Sequence(blocks=4)
    told = [
        dict(layout=grid), dict(layout=sequence), dict(layout=sequence, mask="block_causal"), dict(layout=grid, normalizer="none"),
        dict(layout=grid, feature_map="elu1"), dict(layout=grid, eps=0.5), dict(layout=grid, normalizer="none", scale=0.5),
    ]  # fmt: skip
    # through torch.ops, where a subclass goes
    expected = [mhla.attention(tensors[0].as_subclass(Other), *tensors[1:], **options) for options in told]
    for _ in range(2):  # the second time the texts are known
        for options, o in zip(told, expected):
            assert torch.equal(mhla._library.call(tensors, options), o.as_subclass(torch.Tensor))
    # new objects at every call, in the places of old ones
    for i in range(1, 300):
        eps = i / 8
        o = mhla._library.call(tensors, dict(layout=mhla.Grid((8, 8), block=(4, 4)), eps=eps))
        if i % 50 == 0:
            assert torch.equal(o, torch.ops.mhla.forward(*tensors, None, None, [8, 8], [], f"block=4x4 eps={eps}"))


def test_the_short_call_while_it_forgets(device):
    tensors = (*inputs(16, device=device), weights(4, device))
    call, kept = mhla._library.call, []

    def ask(**options):
        kept.append(mhla.Sequence(blocks=4))
        return call(tensors, dict(layout=kept[-1], **options))

    # The end of a layout may ask again, and so many times that all places are taken by others.
    ended, forgotten = [], mhla.Sequence(blocks=4)
    watch = weakref.ref(forgotten, lambda _: ended.extend(ask(normalizer="none", scale=2.0 + i) for i in range(400)))
    expected = call(tensors, dict(layout=forgotten))
    del forgotten
    for _ in range(5000):
        assert torch.equal(ask(), expected)
        if ended:
            break
    assert ended and watch() is None


def test_the_short_call_does_not_lose_an_interrupt(device, monkeypatch):
    def interrupted(self, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(mhla.Sequence, "_options", interrupted)
    tensors = (*inputs(16, device=device), weights(4, device))
    with pytest.raises(KeyboardInterrupt):
        mhla._library.call(tensors, dict(layout=mhla.Sequence(blocks=4)))


class Other(torch.Tensor):
    """Tensors of another type."""


def test_opcheck_of_the_streaming_operators(device):
    # NOTE: the other checks of opcheck compare arguments, which they cannot do with an object.
    checks = ("test_autograd_registration", "test_faketensor")
    words = f"sequence=16 block=16 batch=2 heads=3 dk=16 dv=16 mask=causal normalizer=none device={device}"
    state = torch.classes.mhla.State(words, weights(4))
    for operator, tokens in ((torch.ops.mhla.prefill, 19), (torch.ops.mhla.step, 1)):
        torch.library.opcheck(operator, (state, *inputs(tokens, device=device)), test_utils=checks)
    q, k, v = inputs(1, device=device)
    with pytest.raises(RuntimeError, match="no gradients"):
        torch.ops.mhla.step(state, q.clone().requires_grad_(), k, v)
    with pytest.raises(RuntimeError, match="vmap is not supported"):
        torch.vmap(lambda a: torch.ops.mhla.step(state, a, k, v))(torch.stack([q, q]))


def test_compiles_once_for_all_lengths(device):
    torch._dynamo.reset()
    compiled = []

    def backend(graph, arguments):
        compiled.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, arguments)

    @torch.compile(fullgraph=True, dynamic=True, backend=backend)
    def call(q, k, v, mixing):
        return mhla.attention(q, k, v, mixing, layout=mhla.Sequence(block=16), mask="causal", normalizer="none") * 2

    for tokens in (64, 80, 112):
        q, k, v = (t.clone().requires_grad_() for t in inputs(tokens, device=device))
        mixing = weights(8, device).requires_grad_()
        o = call(q, k, v, mixing)
        eager = 2 * mhla.attention(
            q, k, v, mixing, layout=mhla.Sequence(block=16), mask="causal", normalizer="none"
        )
        assert torch.equal(o, eager)
        first = len(compiled) if tokens == 64 else first
        o.sum().backward()
        assert mixing.grad is not None
    assert len(compiled) == first


def test_compiles_once_more_for_all_resolutions(device):
    torch._dynamo.reset()
    compiled = []

    @torch.compile(fullgraph=True, backend=lambda graph, _: compiled.append(graph) or graph)
    def call(q, k, v, mixing, layout):
        return mhla.attention(q, k, v, mixing, layout=layout)

    for side in (8, 12, 16, 20):
        layout = mhla.Grid((side, side), block=(4, 4))
        arguments = (*inputs(side * side, device=device), weights(layout.count(), device))
        assert torch.equal(call(*arguments, layout), mhla.attention(*arguments, layout=layout))
    assert len(compiled) == 2


@pytest.mark.parametrize("strict", [False, True])
def test_exports(device, strict):
    class Layer(torch.nn.Module):
        def forward(self, q, k, v, mixing):
            return mhla.attention(q, k, v, mixing, layout=mhla.Grid((8, 8), block=(4, 4)))

    arguments = (*inputs(64, device=device), weights(4, device))
    program = torch.export.export(Layer(), arguments, strict=strict)
    calls = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert calls == [torch.ops.mhla.forward.default]
    assert torch.equal(program.module()(*arguments), Layer()(*arguments))


def test_autocast_takes_low_precision_inputs_and_an_f32_mixing_matrix(device):
    q, k, v = (t.clone().requires_grad_() for t in inputs(64, device=device))
    mixing = weights(4, device).requires_grad_()
    with torch.autocast(device, torch.bfloat16):
        o = mhla.attention(q, k, v, mixing, layout=mhla.Grid((8, 8), block=(4, 4)))
        assert "dtype=bf16" in mhla.explain(q, k, v, mixing, layout=mhla.Grid((8, 8), block=(4, 4)))
    assert o.dtype == torch.bfloat16
    o.float().sum().backward()
    assert q.grad.dtype == torch.float32 and mixing.grad.dtype == torch.float32


def test_slices_of_a_fused_projection_are_read_in_place(device):
    fused = torch.randn(2, 64, 3, 3, 16, device=device)
    q, k, v = fused.unbind(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        o = mhla.attention(q, k, v, weights(4, device), layout=mhla.Grid((8, 8), block=(4, 4)))
    separate = (t.contiguous() for t in (q, k, v))
    assert torch.equal(o, mhla.attention(*separate, weights(4, device), layout=mhla.Grid((8, 8), block=(4, 4))))


def test_packed_sequences_do_not_see_each_other(device):
    q, k, v = inputs(50, batch=1, device=device)
    mixing = weights(4, device)
    options = dict(layout=mhla.Sequence(block=16), mask="causal", normalizer="none")
    packed = mhla.attention(q, k, v, mixing, cu_seqlens=torch.tensor([0, 33, 50]), **options)
    for a, b in ((0, 33), (33, 50)):
        alone = mhla.attention(q[:, a:b], k[:, a:b], v[:, a:b], mixing, **options)
        torch.testing.assert_close(packed[:, a:b], alone)


def test_cross_attention_reads_another_layout(device):
    q, _, _ = inputs(64, device=device)
    _, k, v = inputs(20, device=device)
    mixing = torch.rand(4, 5, device=device)
    o = mhla.attention(
        q, k, v, mixing, layout=mhla.Grid((8, 8), block=(4, 4)), layout_k=mhla.Sequence(block=4)
    )
    index = dense.blocks_of((8, 8), (4, 4))[0].to(device)
    scores = mixing[index][:, torch.arange(20, device=device) // 4] * torch.einsum(
        "bshd,bthd->bhst", torch.relu(q) + 1e-6, torch.relu(k) + 1e-6
    )
    expected = torch.einsum("bhst,bthe->bshe", scores / scores.sum(-1, keepdim=True), v)
    torch.testing.assert_close(o, expected, rtol=1e-4, atol=1e-5)


def test_double_backward_and_vmap_are_refused_with_a_reason(device):
    layout = mhla.Grid((8, 8), block=(4, 4))
    q, k, v = (t.clone().requires_grad_() for t in inputs(64, device=device))
    o = mhla.attention(q, k, v, weights(4, device), layout=layout)
    (d_q,) = torch.autograd.grad(o.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        d_q.sum().backward()
    with pytest.raises(RuntimeError, match="vmap is not supported"):
        mixing = weights(4, device)
        torch.vmap(lambda a: mhla.attention(a, k, v, mixing, layout=layout))(torch.randn(2, *q.shape, device=device))


def test_forward_mode_and_mixed_devices_are_refused():
    layout = mhla.Grid((8, 8), block=(4, 4))
    q, k, v = inputs(64)
    with pytest.raises(RuntimeError, match="forward-mode"):
        torch.func.jvp(lambda a: mhla.attention(a, k, v, weights(4), layout=layout), (q,), (q,))
    with pytest.raises(RuntimeError, match="forward-mode"):
        torch.func.jvp(lambda a: mhla.attention(q, k, v, weights(4), layout=layout, q_den=a, k_den=k), (q,), (q,))
    with pytest.raises(RuntimeError, match="meta"):
        mhla.attention(q, k, v, weights(4).to("meta"), layout=layout)


def test_a_wrong_shape_is_named():
    q, k, v = inputs(64)
    with pytest.raises(RuntimeError, match=r"\[mhla.*64.*63|63.*64"):
        mhla.attention(q, k[:, :63], v[:, :63], weights(4), layout=mhla.Grid((8, 8), block=(4, 4)))
    with pytest.raises(RuntimeError, match="mixing"):
        mhla.attention(q, k, v, weights(5), layout=mhla.Grid((8, 8), block=(4, 4)))
    with pytest.raises(ValueError, match="either block"):
        mhla.Grid((8, 8))


@pytest.mark.parametrize(
    "wrong,message",
    [
        (dict(layout=(8, 8)), r"expected mhla.Sequence\(...\) or mhla.Grid\(...\), got \(8, 8\)"),
        (dict(mixing=[[1.0]]), "mixing: expected a tensor, got list"),
        (dict(q=None), "q: expected a tensor, got NoneType"),
        (dict(k=None), "k: expected a tensor, got NoneType"),
        (dict(v=None), "v: expected a tensor, got NoneType"),
        (dict(mixing=None), "mixing: expected a tensor, got NoneType"),
        (dict(layout=None), r"expected mhla.Sequence\(...\) or mhla.Grid\(...\), got None"),
        (dict(cu_seqlens=torch.tensor([0, 7.5, 64])), r"cu_seqlens: expected a row of whole numbers, got \[0.0, 7.5"),
        (dict(cu_seqlens=torch.tensor([[0, 64]])), "cu_seqlens: expected a row of whole numbers"),
    ],
)
def test_a_wrong_argument_is_named(wrong, message):
    q, k, v = inputs(64)
    good = dict(q=q, k=k, v=v, mixing=weights(16), layout=mhla.Sequence(block=4))
    with pytest.raises((TypeError, ValueError), match=message):
        mhla.attention(**{**good, **wrong})


def test_a_slow_path_warns_and_explain_says_why():
    q, k, v = inputs(10, dtype=torch.float64)
    mixing = weights(2).double()
    layout = mhla.Sequence(block=7)
    script = (
        "import sys; sys.path.insert(0, 'PYTHON')\n"
        "import torch, mhla\n"
        "for tokens in (10, 11):\n"
        "    x = torch.rand(1, tokens, 1, 2, dtype=torch.float64)\n"
        "    mhla.attention(x, x, x, torch.rand(2, 2).double(), layout=mhla.Sequence(block=7))"
    ).replace("PYTHON", str(Path(mhla.__file__).parents[1]))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.count("slow reference") == 1  # once is enough
    text = mhla.explain(q, k, v, mixing, layout=layout)
    assert "reference" in text and "no f64" in text


def test_initial_matrices_have_the_values_of_the_paper_and_of_the_code():
    layout = mhla.Grid((16, 16), block=(4, 4))
    paper, code = mhla.init.locality(layout), mhla.init.authors(layout, "linear")
    assert paper[0, 1].item() == pytest.approx(0.110335, abs=1e-6)
    assert code[0, 1].item() == pytest.approx(0.091118, abs=1e-6)
    torch.testing.assert_close(paper.sum(1), torch.ones(16))
    torch.testing.assert_close(code.sum(0), torch.ones(16))
    lower = mhla.init.causal_locality(mhla.Sequence(block=4), tokens=20)
    assert torch.equal(lower, lower.tril())
    with pytest.raises(RuntimeError, match="got 'nan'"):
        mhla.init.by_name("nan", layout)


def test_resampling_to_the_same_layout_changes_nothing():
    layout = mhla.Grid((16, 16), blocks=(4, 4))
    mixing = mhla.init.locality(layout)
    torch.testing.assert_close(mhla.resample(mixing, layout, layout.resized((24, 24))), mixing)
    assert mhla.resample(mixing, layout, mhla.Grid((16, 16), blocks=(2, 2))).shape == (4, 4)
