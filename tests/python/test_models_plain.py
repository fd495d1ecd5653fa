"""Networks that no package has, against plain PyTorch written from spec.md."""

import copy
import pickle

import mhla
import plain_models as plain
import pytest
import torch
from model_parity import assert_close, shake


def made(name, **options):
    torch.manual_seed(0)
    model = shake(mhla.models.create(name, **options))
    with torch.no_grad():
        for path, value in (*model.named_parameters(), *model.named_buffers()):
            if path.endswith("running_var"):
                value.uniform_(0.5, 1.5)
            if "mixing" in path or "_attn.conv" in path:
                value.abs_()
    return model


@pytest.mark.parametrize("gate", ["none", "silu"])
def test_deit_with_mhla(gate):
    model = made("tiny-deit", attention_options=dict(gate=gate))
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert_close(model(x), plain.deit(model.state_dict(), x, 3, 0))


def test_deit_pads_what_blocks_do_not_divide():
    model = made("tiny-deit", image_size=24)  # 6 tokens a side become 8
    x = torch.randn(2, 3, 24, 24)
    assert model.state_dict()["pos_embed"].shape[1] == 64
    with torch.no_grad():
        assert_close(model(x), plain.deit(model.state_dict(), x, 3, 4))


def test_deit_whose_blocks_differ_in_size():
    model = made("tiny-deit", image_size=28, padding=0)  # 7 tokens a side, 4 blocks
    x = torch.randn(2, 3, 28, 28)
    with torch.no_grad():
        assert_close(model(x), plain.deit(model.state_dict(), x, 3, 0))


@pytest.mark.parametrize("dwconv", [False, True])
def test_dit_with_mhla(dwconv):
    model = made("tiny-dit", dwconv=dwconv)
    x, t, y = torch.randn(2, 4, 16, 16), torch.tensor([3.0, 977.0]), torch.tensor([1, 10])
    with torch.no_grad():
        assert_close(model(x, t, y), plain.dit(model.state_dict(), x, t, y, 3))


def test_dig_with_gla():
    model = made("tiny-dig")
    x, t, y = torch.randn(2, 4, 16, 16), torch.tensor([3.0, 977.0]), torch.tensor([1, 10])
    with torch.no_grad():
        want = plain.dit(model.state_dict(), x, t, y, 3, mixer=plain.gla_recurrence, quad=True)
        assert_close(model(x, t, y), want)


def test_dig_with_mhla_scans_in_no_direction():
    model = made("tiny-dig", attention="mhla")
    x, t, y = torch.randn(2, 4, 16, 16), torch.tensor([3.0, 977.0]), torch.tensor([1, 10])
    with torch.no_grad():
        assert_close(model(x, t, y), plain.dit(model.state_dict(), x, t, y, 3))


def test_vlt_with_mhla():
    model = made("tiny-vlt")
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        want = plain.vlt(model.state_dict(), x, (1, 2, 3, 4), ((4, 4), (2, 2), None, None))
        assert_close(model(x), want)


@pytest.mark.parametrize("tokens", [64, 50, 7])
def test_language_model_with_mhla(tokens):
    model = made("tiny-lm")
    ids = torch.randint(256, (2, tokens))
    with torch.no_grad():
        assert_close(model(ids), plain.language(model.state_dict(), ids, 2, 16))


OLDER = [dict(out_norm="full"), dict(out_norm="after")]


@pytest.mark.parametrize("attention", [{}, dict(gate="silu"), dict(lepe=3), *OLDER], ids=str)
@pytest.mark.parametrize("hybrid", [0, 2])
def test_wan_with_mhla(attention, hybrid):
    model = made("tiny-wan", attention_options=attention, softmax_every=hybrid)
    x, t, text = torch.randn(2, 16, 3, 8, 12), torch.tensor([3.0, 977.0]), torch.randn(2, 11, 24)
    with torch.no_grad():
        assert_close(model(x, t, text), plain.wan(model.state_dict(), x, t, text, 2, (1, 2, 2), 16))


@pytest.mark.parametrize("blocks", [(3, 5, 10), (7, 3, 5)], ids=str)
@pytest.mark.parametrize("hybrid", [0, 3])
@pytest.mark.parametrize("attention", [{}, dict(gate="silu", lepe=3), *OLDER], ids=str)
def test_the_authors_wan_checkpoints_are_recognised(attention, hybrid, blocks):
    size = dict(dim=48, depth=4, heads=2, ffn=64, text_dim=24, video_size=(25, 240, 320))
    published = mhla.models.create("tiny-wan", attention_options=attention, softmax_every=hybrid, blocks=blocks, **size)
    state = published.state_dict()
    told = mhla.models.options_of("wan2.1-1.3b", state)
    mine = mhla.models.create("tiny-wan", **{**size, **told})
    mine.load(state)
    assert all(torch.equal(value, state[name]) for name, value in mine.state_dict().items())


def test_sana_with_mhla():
    model = made("tiny-sana")
    x, t, text = torch.randn(2, 4, 8, 8), torch.tensor([3.0, 977.0]), torch.randn(2, 12, 24)
    mask = torch.ones(2, 12).long()
    mask[1, 7:] = 0
    with torch.no_grad():
        assert_close(model(x, t, text, mask), plain.sana(model.state_dict(), x, t, text, mask, 4, 2, (4, 4)))


@pytest.mark.parametrize("attention", ["mhla", "softmax", "gla", "gated_deltanet", "mamba2"])
def test_a_language_model_reads_step_by_step(attention):
    model = made("tiny-lm", attention=attention)
    ids = torch.randint(256, (2, 50))
    with torch.no_grad():
        want = model(ids)
    state = model.init_state()
    pieces = [model.step(piece, state) for piece in (ids[:, :21], *ids[:, 21:40].split(1, 1), ids[:, 40:])]
    assert_close(torch.cat(pieces, 1), want)


RUNS = ["tiny-deit", "tiny-vlt", "tiny-dit", "tiny-dig", "tiny-lm", "tiny-sana", "tiny-wan"]
CAUSAL = ["mhla", "softmax", "linear", "retnet", "gla", "simple_gla", "gated_deltanet", "mamba2"]
PICTURE = ["focused", "inline", "rala", "mala"]


@pytest.mark.parametrize("attention", CAUSAL + PICTURE)
@pytest.mark.parametrize("name", RUNS)
def test_every_network_trains_with_every_attention(name, attention):
    if name == "tiny-lm" and attention in PICTURE:
        with pytest.raises(RuntimeError, match="causal"):
            mhla.models.create(name, attention=attention)
        return
    model = mhla.models.create(name, attention=attention).train()
    out = model(*model.example_inputs(2))
    assert out.isfinite().all()
    shake(model).train()
    model(*model.example_inputs(2)).square().mean().backward()
    without = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not without


def test_parameters_are_pytorchs_own():
    torch.manual_seed(0)
    model = mhla.models.create("tiny-deit")
    assert all(isinstance(p, torch.nn.Parameter) for p in model.parameters())
    x, y = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        mhla.constrain_(model)
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    mixing = model.state_dict()["blocks.0.attn.piece_attn.conv.weight"]
    assert mixing.min() >= 0 and mixing.max() <= 1


def test_copies_are_independent_and_equal():
    model = made("tiny-vlt")
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        want = model(x)
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(copied(x), want) and not copied.training
            for parameter in copied.parameters():
                parameter.zero_()
            assert torch.equal(model(x), want)


def test_precision_and_buffers_follow_the_module():
    model = made("tiny-vlt")
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        want = model(x)
        model.double()
        assert all(b.dtype == torch.float64 for n, b in model.named_buffers() if not n.endswith("tracked"))
        torch.testing.assert_close(model(x.double()).float(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", ["mhla", "softmax", "linear", *PICTURE])
@pytest.mark.parametrize("name", ["tiny-deit", "tiny-dit", "tiny-vlt", "tiny-sana", "tiny-wan"])
def test_other_resolutions_run_without_new_weights(name, attention):
    model = made(name, attention=attention)
    inputs = model.example_inputs(2)
    batch, channels, *size = inputs[0].shape
    wide = torch.randn(batch, channels, *(each * factor for each, factor in zip(size, (2, 3, 2))))
    with torch.no_grad():
        assert model(wide, *inputs[1:]).isfinite().all()


def test_a_longer_context_is_read_with_a_resampled_matrix():
    model = made("tiny-lm")
    ids = torch.randint(256, (2, 130))  # made for 64
    with torch.no_grad():
        long = model(ids)
    assert long.isfinite().all() and long.shape == (2, 130, 256)
    with pytest.raises(RuntimeError, match="training needs"):
        model(ids)


def test_tensors_of_another_size_are_fitted():
    small, large = made("tiny-deit"), mhla.models.create("tiny-deit", image_size=64, blocks=(8, 8))
    report = large.load(small.state_dict())
    assert "8x8" in report and "16 blocks" in report
    state = large.state_dict()
    assert state["pos_embed"].shape == (1, 256, 48)
    mixing = state["blocks.1.attn.piece_attn.conv.weight"]
    sums = small.state_dict()["blocks.1.attn.piece_attn.conv.weight"].sum(1)
    assert mixing.shape == (64, 64, 1, 1) and mixing.sum(1).mean() == pytest.approx(sums.mean().item(), rel=0.1)
    same = mhla.models.create("tiny-deit")
    same.load(small.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(same.state_dict().values(), small.state_dict().values()))


@pytest.mark.parametrize(
    "name,options,message",
    [
        ("deit-x", {}, "did you mean 'deit-"),
        ("deit-t", dict(image_sise=3), "image_size"),
        ("deit-t", dict(attention="softmx"), "did you mean 'softmax'"),
        ("deit-t", dict(attention_options=dict(lpe=3)), "did you mean 'lepe'"),
        ("dit-s/2", dict(image_size=250), "multiple of 16"),
        ("deit-t", dict(class_token=True), "class token"),
        # Each of these ended the process or made a network of nonsense.
        ("deit-t", dict(patch=0), "patch: expected 1 to 16777216, got 0"),
        ("deit-t", dict(blocks=(0, 4)), "blocks: expected 1 to"),
        ("deit-t", dict(depth=-1), "depth: expected 1 to"),
        ("deit-t", dict(image_size=10**12), "image_size: expected 1 to 16777216, got 1000000000000"),
        ("deit-t", dict(image_size=(1, 2, 3)), "SIZE or HEIGHTxWIDTH"),
        ("deit-t", dict(mlp_ratio="nan"), "mlp_ratio: expected 0 to 1e6, got nan"),
        ("deit-t", dict(drop_path=1), "drop_path: expected 0 to below 1, got 1"),
        ("lm-340m", dict(attention="gla", attention_options=dict(chunk=0)), "chunk: expected 1 to"),
        ("wan2.1-1.3b", dict(video_size=(81, 480)), "video_size"),
        ("vlt-t", dict(widths=(64, 128)), "widths"),
        ("deit-t", dict(blocks=(4,)), "blocks"),
    ],
)
def test_mistakes_are_explained(name, options, message):
    with pytest.raises(RuntimeError, match=message):
        mhla.models.create(name, device="meta", **options)


def test_one_option_cannot_carry_another():
    with pytest.raises(ValueError, match="attention: expected a value without blanks"):
        mhla.models.create("tiny-deit", attention="mhla depth=1")


def test_wrong_inputs_are_explained():
    model = mhla.models.create("tiny-dit")
    with pytest.raises(TypeError, match="takes x, t, y"):
        model(torch.randn(1, 4, 16, 16))
    with pytest.raises(RuntimeError, match="expected .B, 4, H, W."):
        model(torch.randn(1, 3, 16, 16), torch.zeros(1), torch.zeros(1).long())
