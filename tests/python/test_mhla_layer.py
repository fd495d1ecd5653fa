"""The MHLA layer: the same bits in C++, the authors' formulas, training, constraints."""

import pickle

import cpp_layers
import dense
import pytest
import torch
import torch.nn.functional as F

import mhla
from mhla.nn import MHLA

GRID, BLOCK, DIM, HEADS = (8, 8), (4, 4), 48, 3
TASKS = {
    "classification": mhla.Grid(GRID, block=BLOCK),
    "dit": mhla.Grid(GRID, block=BLOCK),
    "video": mhla.Grid((2, 4, 8), block=(2, 2, 4)),
    "language": mhla.Sequence(block=16),
}


def layer(preset, task, **switches):
    torch.manual_seed(3)
    made = MHLA(DIM, HEADS, TASKS[task], preset=preset, task=task, tokens=64 if task == "language" else None, **switches)
    with torch.no_grad():  # nothing stays at a value that would hide a missing term
        for parameter in made.parameters():
            parameter.add_(torch.rand_like(parameter) * 0.1)
    return made.eval()


@pytest.mark.parametrize("preset", ["paper", "authors"])
@pytest.mark.parametrize("task", list(TASKS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_python_and_cpp_layers_agree_to_the_last_bit(preset, task, dtype):
    cpp = cpp_layers.ops()
    made = layer(preset, task).to(dtype)
    x = torch.randn(2, 64, DIM, dtype=dtype)
    names, values = zip(*made.named_parameters())
    grid = list(TASKS[task].sizes)
    theirs = cpp.run_mhla(
        preset, task, [DIM, HEADS, made.dim_k, 64], grid, list(TASKS[task].block), list(names), list(values), x
    )
    with torch.no_grad():
        assert torch.equal(made(x), theirs)


@pytest.mark.parametrize("preset", ["paper", "authors"])
def test_steps_in_python_and_cpp_agree_to_the_last_bit(preset):
    cpp = cpp_layers.ops()
    made = layer(preset, "language")
    pieces = torch.randn(2, 50, DIM).split([19, 1, 1, 29], 1)
    names, values = zip(*made.named_parameters())
    theirs = cpp.step_mhla(preset, [DIM, HEADS, made.dim_k, 64], [16], list(names), list(values), list(pieces))
    state = made.init_state(batch=2)
    assert torch.equal(torch.cat([made.step(piece, state)[0] for piece in pieces], 1), theirs)


def blocked(x, grid, block):
    """[..., N, C] in raster order -> [..., M, Nb, C] (spec 1.5), for equal 2-D blocks."""
    (gy, gx), (py, px) = grid, block
    x = x.unflatten(-2, (gy // py, py, gx // px, px))
    return x.transpose(-4, -3).flatten(-5, -4).flatten(-3, -2)


def unblocked(x, grid, block):
    (gy, gx), (py, px) = grid, block
    x = x.unflatten(-3, (gy // py, gx // px)).unflatten(-2, (py, px))
    return x.transpose(-4, -3).flatten(-5, -2)


def test_authors_classification_layer_is_spec_1_3_and_1_9():
    made = layer("authors", "classification")
    x = torch.randn(2, 64, DIM)
    p = dict(made.named_parameters())
    y = F.layer_norm(x, (DIM,), p["norm.weight"], p["norm.bias"], 1e-5)
    q, k, v = (y @ p["qkv.weight"].T).chunk(3, -1)
    eps = torch.finfo(torch.float32).eps
    rms = lambda t, w: t * torch.rsqrt(t.square().mean(-1, keepdim=True) + eps) * w  # noqa: E731
    q, k = rms(q, p["q_norm.weight"]), rms(k, p["k_norm.weight"])
    heads = lambda t: blocked(t.unflatten(-1, (HEADS, -1)).transpose(1, 2), GRID, BLOCK)  # noqa: E731
    qb, kb, vb = heads(q), heads(k), heads(v)  # [B, H, M, Nb, d]
    qb, kb = torch.relu(qb) + 1e-6, torch.relu(kb) + 1e-6
    m = p["mixing"]
    summaries = torch.einsum("ib,zhbde->zhide", m, torch.einsum("zhbwd,zhbwe->zhbde", kb, vb))
    numerator = torch.einsum("zhiwd,zhide->zhiwe", qb, summaries)
    own = torch.einsum("zhbwd,zhbd->zhbw", qb, kb.sum(-2))  # q of each block with its own key sum
    denominator = torch.einsum("ib,zhbw->zhiw", m, own) + 1e-6
    o = unblocked(numerator / denominator.unsqueeze(-1), GRID, BLOCK).transpose(1, 2).flatten(2)
    lepe = F.conv2d(
        v.transpose(1, 2).unflatten(-1, GRID), p["lepe.weight"], p["lepe.bias"], padding=2, groups=DIM
    ).flatten(2)
    expected = (o + lepe.transpose(1, 2)) @ p["out.weight"].T + p["out.bias"]
    torch.testing.assert_close(made(x), expected, rtol=1e-4, atol=1e-5)


def rope(x):
    """GPT-NeoX half-split, base 10000; x [B, T, H, d]"""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[1])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@pytest.mark.parametrize("tokens", [64, 50])
def test_authors_language_layer_is_spec_1_7_and_1_9(tokens):
    made = layer("authors", "language")
    x = torch.randn(2, tokens, DIM)
    p = dict(made.named_parameters())
    q, k, v = (x @ p["qkv.weight"].T).split([made.dim_k, made.dim_k, DIM], -1)
    q, k, v = (t.unflatten(-1, (HEADS, -1)) for t in (q, k, v))
    q, k = rope(torch.relu(q)), rope(torch.relu(k))
    m = p["mixing"].clamp(1e-5, 1)
    outputs, states, chunk = [], [], 16
    for i, start in enumerate(range(0, tokens, chunk)):
        qi, ki, vi = (t[:, start : start + chunk].transpose(1, 2) for t in (q, k, v))
        o = m[i, i] * (qi @ ki.transpose(-1, -2)).tril() @ vi
        for b, state in enumerate(states):
            o = o + m[i, b] * qi @ state
        states.append(ki.transpose(-1, -2) @ vi)
        outputs.append(o.transpose(1, 2))
    o = torch.cat(outputs, 1) * (made.dim_k // HEADS) ** -0.5
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-6) * p["out_norm.weight"]
    o = o.flatten(2) * F.silu(x @ p["gate.weight"].T)
    torch.testing.assert_close(made(x), o @ p["out.weight"].T, rtol=1e-4, atol=1e-5)


GOLDEN = [1.425982, 1.27493, 1.119665, 0.934705, 0.717562, 0.490255, 0.290155, 0.144291, 0.058714, 0.019892]


def ten_losses():
    torch.manual_seed(0)
    made = MHLA(32, 2, mhla.Grid((4, 4), block=(2, 2)))
    head = torch.nn.Linear(32, 4)
    x, labels = torch.randn(8, 16, 32), torch.randint(0, 4, (8,))
    optimizer = torch.optim.AdamW([*made.parameters(), *head.parameters()], lr=1e-2)
    losses = []
    for _ in range(10):
        loss = F.cross_entropy(head(made(x).mean(1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mhla.constrain_(made)
        losses.append(loss.item())
    assert made.mixing.min() >= 0 and made.mixing.max() <= 1
    return losses


def test_ten_training_steps_have_the_losses_they_always_had(monkeypatch):
    assert ten_losses() == pytest.approx(GOLDEN, rel=1e-3)

    def plain(q, k, v, mixing, layout, **_):
        return dense.attention(q, k, v, mixing, layout.size, layout.block)

    monkeypatch.setattr(mhla.nn.mhla, "attention", plain)
    assert ten_losses() == pytest.approx(GOLDEN, rel=1e-3)


def test_constrain_keeps_the_range_and_the_row_sums():
    made = MHLA(32, 2, mhla.Grid((4, 4), block=(2, 2)), renormalize_rows=True)
    with torch.no_grad():
        made.mixing.copy_(torch.randn(4, 4) * 3)
        made.mixing[2].fill_(-1)
    assert mhla.constrain_(torch.nn.Sequential(made)) == 1
    torch.testing.assert_close(made.mixing.sum(-1), torch.ones(4))
    assert made.mixing.min() >= 0 and torch.equal(made.mixing[2], torch.full((4,), 0.25))


def test_a_frozen_mixing_matrix_gets_no_gradient_and_the_others_get_the_same():
    x, grid = torch.randn(2, 16, 32), mhla.Grid((4, 4), block=(2, 2))
    gradients = []
    for frozen in (False, True):
        torch.manual_seed(0)
        made = MHLA(32, 2, grid, preset="authors", init="uniform", freeze_mixing=frozen)
        made(x).square().sum().backward()
        gradients.append({name: p.grad for name, p in made.named_parameters() if p.grad is not None})
    assert set(gradients[0]) - set(gradients[1]) == {"mixing"} and not made.mixing.requires_grad
    for name, gradient in gradients[1].items():
        assert torch.equal(gradient, gradients[0][name]), name
    assert mhla.constrain_(made) == 0 and torch.equal(made.mixing, torch.full((4, 4), 0.25))


@pytest.mark.parametrize("name", ["tiny-deit", "tiny-vlt", "tiny-dit", "tiny-lm"])
def test_a_network_with_frozen_mixing_trains_all_but_it(name):
    mixing = ("piece_attn.conv.weight", "mixing_matrix")
    free = mhla.models.create(name, attention="mhla")
    frozen = mhla.models.create(name, attention="mhla", attention_options=dict(freeze_mixing=True))
    left = {key for key, p in free.named_parameters() if p.requires_grad} - {
        key for key, p in frozen.named_parameters() if p.requires_grad
    }
    assert left and left == {key for key, _ in free.named_parameters() if key.endswith(mixing)}


def test_in_half_precision_a_result_beyond_its_range_saturates():
    """A background whose q and k have nothing in common, and one token that has: the authors' denominator
    is almost nothing, the numerator is not."""
    made = MHLA(2, 1, mhla.Grid((4, 4), block=(1, 1)), normalizer="shared_position", qkv_bias=False)
    with torch.no_grad():
        made.qkv.weight.copy_(torch.tensor([[1, 0], [0, 1], [0, 1], [1, 0], [0, 10], [1, 0]]))
        made.out.weight.copy_(torch.eye(2) / 64)
        made.out.bias.zero_()
    x = torch.tensor([1.0, 0.0]).repeat(1, 16, 1)
    x[0, 5] = torch.tensor([0.0, 1.0])
    wide = made(x)
    assert wide.max() > 65504 / 64
    with torch.autocast("cpu", dtype=torch.float16):
        narrow = made(x)
    narrow.float().sum().backward()
    assert narrow.max() == 65504 / 64 and made.qkv.weight.grad.isfinite().all()
    inside = wide < 65504 / 64
    torch.testing.assert_close(narrow[inside].float(), wide[inside], rtol=0.02, atol=1e-2)


def test_the_parametrisation_clamps_and_still_learns():
    made = MHLA(32, 2, mhla.Grid((4, 4), block=(2, 2)))
    torch.nn.utils.parametrize.register_parametrization(made, "mixing", mhla.Constrained())
    with torch.no_grad():
        made.parametrizations.mixing.original.add_(2.0)
    assert made.mixing.max() <= 1
    made(torch.randn(1, 16, 32)).square().sum().backward()
    assert made.parametrizations.mixing.original.grad.abs().sum() > 0


def test_unknown_switches_and_presets_name_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'authors'"):
        MHLA(32, 2, mhla.Grid((4, 4), block=(2, 2)), preset="author")
    with pytest.raises(ValueError, match="did you mean 'normalizer'"):
        MHLA(32, 2, mhla.Grid((4, 4), block=(2, 2)), normaliser="exact")
    with pytest.raises(ValueError, match="gate: expected one of none, silu"):
        MHLA(32, 2, mhla.Grid((4, 4), block=(2, 2)), gate="sigmoid")
    with pytest.raises(ValueError, match="multiple of 3 heads"):
        MHLA(32, 3, mhla.Grid((4, 4), block=(2, 2)))


def test_a_layer_compiles_and_runs_in_bf16():
    made = layer("authors", "dit")
    x = torch.randn(2, 64, DIM)
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), made(x))
    low = made.to(torch.bfloat16)(x.to(torch.bfloat16))
    assert low.dtype == torch.bfloat16 and low.isfinite().all()


@pytest.mark.parametrize("preset", ["paper", "authors"])
def test_steps_give_what_one_call_gives(preset):
    made = layer(preset, "language")
    x = torch.randn(2, 50, DIM)
    with torch.no_grad():
        whole = made(x)
    state = made.init_state(batch=2)
    pieces = []
    for start, end in ((0, 19), (19, 20), (20, 21), (21, 40)):
        y, state = made.step(x[:, start:end], state)
        pieces.append(y)
    branch = state.fork()
    pieces += [made.step(x[:, t : t + 1], state)[0] for t in range(40, 50)]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-4, atol=1e-5)
    assert state.tokens() == 50 and branch.tokens() == 40
    again = pickle.loads(pickle.dumps(branch))
    torch.testing.assert_close(made.step(x[:, 40:], again)[0], whole[:, 40:], rtol=1e-4, atol=1e-5)
    state.rewind(32)
    torch.testing.assert_close(made.step(x[:, 32:], state)[0], whole[:, 32:], rtol=1e-4, atol=1e-5)


def test_a_state_needs_a_causal_layer():
    with pytest.raises(ValueError, match="causal"):
        layer("paper", "dit").init_state()
    with pytest.raises(TypeError, match="what init_state returned, got None"):
        layer("paper", "language").step(torch.randn(1, 1, DIM), None)


@pytest.mark.parametrize(
    "switches,message",
    [
        (dict(lepe=4), "lepe: expected an odd size"),
        (dict(lepe=-3), "lepe: expected an odd size"),
        (dict(clamp=(1.0, 0.0)), r"clamp: expected \(lowest, highest\)"),
    ],
)
def test_wrong_switches_are_named(switches, message):
    with pytest.raises(ValueError, match=message):
        mhla.nn.MHLA(8, 2, mhla.Grid((4, 4), block=(2, 2)), **switches)
