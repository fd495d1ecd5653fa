"""replace_attention on models of other packages: forward, backward, save, load, compile."""

import pytest
import torch

from swapping import check

import mhla


def test_a_transformers_decoder():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=50, max_position_embeddings=128,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    ids = torch.randint(0, 50, (2, 40))
    check(model, lambda m: m(ids).logits, 2, layout=mhla.Sequence(block=16), tokens=64)
    changed = ids.clone()
    changed[:, 25:] = 1
    assert torch.equal(model(ids).logits[:, :25], model(changed).logits[:, :25])  # causal
    with pytest.raises(ValueError, match="use_cache"):
        model(ids, use_cache=True)
    padding = torch.ones_like(ids)
    padding[:, :5] = 0
    with pytest.raises(ValueError, match="attention_mask"):
        model(ids, attention_mask=padding)


def test_cross_attention_of_an_encoder_and_decoder_is_left():
    transformers = pytest.importorskip("transformers")
    config = transformers.BartConfig(
        vocab_size=50, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.BartModel(config).eval()
    with pytest.warns(UserWarning, match="encoder_attn"):
        mhla.replace_attention(model, layout=mhla.Sequence(block=8), tokens=32)
    assert list(model.mhla_skipped) == ["decoder.layers.0.encoder_attn"]


def test_a_diffusers_dit():
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=8, num_layers=2, sample_size=16,
        patch_size=2, num_embeds_ada_norm=10, norm_num_groups=4,
    )  # fmt: skip
    x, t, y = torch.randn(2, 4, 16, 16), torch.tensor([1, 2]), torch.tensor([3, 4])
    check(
        model, lambda m: m(x, timestep=t, class_labels=y).sample, 2, layout=mhla.Grid((8, 8), block=(4, 4)),
        normalizer="shared_position",
    )  # fmt: skip


def test_a_diffusers_wan_transformer_keeps_its_cross_attention():
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    model = diffusers.WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=24, in_channels=4, out_channels=4, text_dim=16, freq_dim=16,
        ffn_dim=32, num_layers=2, cross_attn_norm=True, qk_norm="rms_norm_across_heads",
    )  # fmt: skip
    x, t, text = torch.randn(1, 4, 3, 8, 8), torch.tensor([3]), torch.randn(1, 7, 16)
    with pytest.warns(UserWarning, match="blocks.0.attn2"):
        check(
            model, lambda m: m(hidden_states=x, timestep=t, encoder_hidden_states=text).sample, 2,
            layout=mhla.Grid((3, 4, 4), blocks=(1, 2, 2)),
        )  # fmt: skip
    assert sorted(model.mhla_skipped) == ["blocks.0.attn2", "blocks.1.attn2"]
    # The rotary tables arrive, which Wan passes by position.
    layer, state = model.blocks[0].attn1, torch.randn(1, 48, 48)
    cos, sin = torch.randn(1, 48, 1, 24).cos(), torch.randn(1, 48, 1, 24).sin()
    assert not torch.equal(layer(state, None, None, (cos, sin)), layer(state))


def test_plain_modules_and_what_cannot_be_swapped():
    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.num_heads = 2
            self.q, self.k, self.v, self.o = (torch.nn.Linear(16, 16) for _ in range(4))

        def forward(self, x):
            return x

    class Model(torch.nn.Module):
        def __init__(self, *layers):
            super().__init__()
            self.layers = torch.nn.ModuleList(layers)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    x = torch.randn(1, 12, 16)
    hybrid = mhla.replace_attention(
        Model(*(Plain() for _ in range(4))), layout=mhla.Sequence(block=4), tokens=12, keep=[0, 2]
    )
    assert [hasattr(layer, "mixing") for layer in hybrid.layers] == [False, True, False, True]
    with pytest.raises(ValueError, match="no attention layer 1 of 1"):
        mhla.replace_attention(Model(Plain()), layout=mhla.Sequence(block=4), tokens=12, keep=[1])
    check(Model(Plain()), lambda m: m(x), 1, layout=mhla.Sequence(block=4), tokens=12)
    other = torch.nn.MultiheadAttention(16, 2)
    with pytest.raises(ValueError, match="layers.0: MultiheadAttention"):
        mhla.replace_attention(Model(other), layout=mhla.Sequence(block=4), tokens=12)
    for wrong, message in (
        (dict(normalizer="exat"), "normalizer.*did you mean 'exact'"),
        (dict(feature_map="gelu"), "feature_map: expected one of"),
        (dict(layout=(3, 4)), r"expected mhla.Sequence\(...\) or mhla.Grid\(...\), got \(3, 4\)"),
    ):
        model = Model(Plain())
        with pytest.raises((TypeError, ValueError), match=message):
            mhla.replace_attention(model, **{**dict(layout=mhla.Sequence(block=4), tokens=12), **wrong})
        assert isinstance(model.layers[0], Plain)  # as it was
