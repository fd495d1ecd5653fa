"""Attention plus a convolution of v: one call against the two operations in f64, everywhere."""

import pytest
import torch
import torch.nn.functional as F

import mhla

FORMS = {  # 256 tokens in 16 blocks of 16, which one kernel serves on Hopper, and others
    "4x4": mhla.Grid((16, 16), block=(4, 4)),
    "2x8": mhla.Grid((16, 16), block=(2, 8)),
    "1x16": mhla.Grid((4, 64), block=(1, 16)),
    "wide": mhla.Grid((8, 32), block=(4, 4)),
    "ragged": mhla.Grid((15, 17), block=(4, 5)),
    "video": mhla.Grid((2, 8, 8), block=(1, 4, 4)),
}


def leaf(strides: str, batch: int, tokens: int, heads: int, width: int, dtype, device) -> list[torch.Tensor]:
    if strides == "fused":
        return list(torch.randn(batch, tokens, 3, heads, width, device=device).to(dtype).unbind(2))
    return [torch.randn(batch, tokens, heads, width, device=device).to(dtype) for _ in range(3)]


def composed(q, k, v, mixing, weight, bias, layout, **options):
    """By hand: the operator, then PyTorch's convolution, rounded in between as the inputs are."""
    o = mhla.attention(q, k, v, mixing, layout=layout, **options)
    picture = v.flatten(2).transpose(1, 2).unflatten(-1, layout.size)
    convolve = F.conv2d if len(layout.size) == 2 else F.conv3d
    local = convolve(picture, weight, bias, padding=weight.shape[-1] // 2, groups=weight.shape[0])
    return o + local.flatten(2).transpose(1, 2).unflatten(-1, v.shape[2:])


def norm_error(got, wanted):
    return ((got.cpu().double() - wanted).norm() / wanted.norm()).item()


CASES = [
    pytest.param(form, batch, heads, width, normalizer, mask, strides, bias, id=f"{form}-{batch}x{heads}x{width}-"
                 f"{normalizer}-{mask}-{strides}-{'bias' if bias else 'plain'}")
    for form, batch, heads, width, normalizer, mask, strides, bias in [
        ("4x4", 2, 3, 64, "shared_position", "none", "fused", True),
        ("4x4", 40, 6, 64, "shared_position", "none", "fused", True),  # more heads than multiprocessors
        ("4x4", 25, 6, 64, "exact", "none", "dense", True),
        ("4x4", 1, 1, 64, "none", "none", "dense", False),
        ("4x4", 23, 6, 48, "shared_position", "block_causal", "fused", False),
        ("4x4", 3, 2, 40, "exact", "block_causal", "fused", True),
        ("2x8", 24, 6, 64, "shared_position", "none", "fused", True),
        ("1x16", 2, 2, 64, "exact", "none", "dense", True),
        ("wide", 2, 3, 64, "shared_position", "none", "fused", True),
        ("4x4", 2, 3, 72, "shared_position", "none", "fused", True),
        ("ragged", 2, 2, 32, "exact", "none", "fused", True),
        ("video", 1, 2, 32, "exact", "none", "dense", True),
    ]
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("form,batch,heads,width,normalizer,mask,strides,has_bias", CASES)
def test_one_call_is_the_operator_and_the_convolution(
    device, dtype, form, batch, heads, width, normalizer, mask, strides, has_bias
):
    if device == "cpu" and batch > 3:
        pytest.skip("as few heads do")
    if device == "cuda" and dtype == torch.float64:
        pytest.skip("not on a GPU")
    torch.manual_seed(1)
    layout = FORMS[form]
    tokens = torch.tensor(layout.size).prod().item()
    q, k, v = leaf(strides, batch, tokens, heads, width, dtype, device)
    blocks = mhla.init.locality(layout).shape[0]
    mixing = torch.rand(blocks, blocks, device=device)
    axes = len(layout.size)
    weight = torch.randn(heads * width, 1, *[3] * axes, device=device).to(dtype)
    bias = torch.randn(heads * width, device=device).to(dtype) if has_bias else None
    options = dict(layout=layout, normalizer=normalizer, mask=mask)
    exact = [None if x is None else x.cpu().double() for x in (q, k, v, mixing, weight, bias)]
    wanted = composed(*exact, **options)
    with torch.no_grad():
        got = mhla.attention(q, k, v, mixing, local=(weight, bias), **options)
        again = mhla.attention(q, k, v, mixing, local=(weight, bias), **options)
        naive = composed(q, k, v, mixing, weight, bias, **options)
    assert got.dtype == dtype and torch.equal(got, again)
    limit = {torch.float64: 1e-13, torch.float32: 1e-6}.get(dtype) or 2 * norm_error(naive, wanted)
    assert norm_error(got, wanted) < limit


def off_by_one(x: torch.Tensor) -> torch.Tensor:
    """The same values, not on 16 bytes."""
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view_as(x)


MEMORY = {
    "fused": lambda q, k, v: (q, k, v),
    "contiguous": lambda q, k, v: (q.contiguous(), k.contiguous(), v.contiguous()),
    "misaligned q": lambda q, k, v: (off_by_one(q), k, v),
    "misaligned v": lambda q, k, v: (q, k, off_by_one(v)),
    "one query": lambda q, k, v: (q[:, :1].expand_as(q), k, v),
    "one value": lambda q, k, v: (q, k, v[:, :1].expand_as(v)),
    "one picture": lambda q, k, v: (q, k[:1].expand_as(k), v),
    "one head": lambda q, k, v: (q, k[:, :, :1].expand_as(k), v),
}


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("normalizer", ["exact", "shared_position"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_matrix_in_16_bits_is_read_as_in_32(device, dtype, normalizer, memory):
    torch.manual_seed(4)
    layout = FORMS["4x4"]
    q, k, v = MEMORY[memory](*leaf("fused", 2, 256, 3, 64, dtype, device))
    weight, bias = torch.randn(192, 1, 3, 3, device=device).to(dtype), torch.randn(192, device=device).to(dtype)
    options = dict(layout=layout, normalizer=normalizer)
    text = f"{layout.cut_words()} mask=none normalizer={normalizer} feature_map=relu_eps"

    def called(m):  # the operator itself: nothing in front of it changes the matrix
        return torch.ops.mhla.forward_and_local(q, k, v, m, None, None, [16, 16], text, weight, bias)

    matrix = torch.rand(16, 16, device=device)
    with torch.no_grad():
        for narrow in (matrix.to(dtype), matrix.to(dtype).t(), matrix.bfloat16(), matrix.half()):
            wide = called(narrow.float())
            assert torch.equal(called(narrow), wide)
            assert torch.equal(mhla.attention(q, k, v, narrow, local=(weight, bias), **options), wide)
            wanted = composed(*(x.cpu().double() for x in (q, k, v, narrow, weight, bias)), **options)
            assert norm_error(wide, wanted) < (1e-2 if dtype == torch.bfloat16 else 2e-3)


def test_the_matrix_reaches_the_operator_in_16_bits(monkeypatch):
    given = []
    monkeypatch.setattr(torch.ops.mhla, "forward_and_local", lambda q, k, v, mixing, *others: given.append(mixing))
    q, mixing = torch.randn(1, 256, 1, 8).bfloat16(), torch.rand(16, 16).bfloat16()
    mhla.attention(q, q, q, mixing, layout=FORMS["4x4"], local=(torch.randn(8, 1, 3, 3).bfloat16(), None))
    assert given[0] is mixing


def test_gradients_pass_through_both_terms(device):
    torch.manual_seed(2)
    layout, heads, width = FORMS["4x4"], 2, 64
    dtype = torch.float64 if device == "cpu" else torch.bfloat16
    mixing = torch.rand(16, 16, device=device, dtype=torch.float64 if device == "cpu" else torch.float32)
    leaves = [*leaf("dense", 2, 256, heads, width, dtype, device), mixing,
              torch.randn(heads * width, 1, 3, 3, device=device).to(dtype),
              torch.randn(heads * width, device=device).to(dtype)]  # fmt: skip
    ours = [x.clone().requires_grad_() for x in leaves]
    truth = [x.cpu().double().requires_grad_() for x in leaves]
    q, k, v, mixing, weight, bias = ours
    got = mhla.attention(q, k, v, mixing, layout=layout, normalizer="shared_position", local=(weight, bias))
    wanted = composed(*truth, layout=layout, normalizer="shared_position")
    gradient = torch.randn_like(got)
    got.backward(gradient)
    wanted.backward(gradient.cpu().double())
    tolerance = 1e-12 if dtype == torch.float64 else 2e-2
    for mine, true in zip(ours, truth, strict=True):
        assert norm_error(mine.grad, true.grad) < tolerance


def test_a_layer_in_evaluation_agrees_with_the_same_layer_in_training(device):
    torch.manual_seed(3)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    layer = mhla.nn.MHLA(384, 6, FORMS["4x4"], preset="authors", task="dit").to(device, dtype).eval()
    with torch.no_grad():
        layer.lepe.weight.normal_(0, 0.3)
        layer.lepe.bias.normal_(0, 0.3)
    x = torch.randn(4, 256, 384, device=device).to(dtype)
    composed = layer(x).detach()
    with torch.no_grad():
        fused = layer(x)
    assert norm_error(fused, composed.cpu().double()) < (1e-6 if dtype == torch.float32 else 1e-2)


def test_a_local_term_needs_a_grid():
    q = torch.randn(1, 32, 1, 8)
    with pytest.raises(ValueError, match="needs a Grid layout"):
        mhla.attention(q, q, q, torch.ones(2, 2), layout=mhla.Sequence(block=16),
                       local=(torch.zeros(8, 1, 3, 3), None))  # fmt: skip
