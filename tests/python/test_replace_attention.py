"""replace_attention on models of other packages: forward, backward, save, load, compile."""

import importlib.util

import pytest
import torch

import mhla


def check(model, call, layers, **options):
    """Swaps, then runs everything a user does with a model."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert mhla.replace_attention(model, **options) is model
    swapped = [m for m in model.modules() if type(m).__name__ == "SwappedAttention"]
    assert len(swapped) == layers
    after = model.state_dict()
    for name, value in before.items():  # every old weight is there, under its name
        assert torch.equal(after[name], value), name

    model.eval()
    out = call(model)
    out.square().mean().backward()
    # A class token reads the last layer with weights of its own, so that one may have no gradient.
    assert swapped[0].mixing.grad.abs().sum() > 0

    state = {name: value.clone() for name, value in after.items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    assert not torch.equal(call(model), out)
    model.load_state_dict(state)
    assert torch.equal(call(model), out)

    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(call(compiled), out)
    return swapped


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


def import_timm():
    """timm's torchvision wants operators that its wheel lacks beside a CPU build of torch."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed here; it has an environment of its own")
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        try:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        except RuntimeError:  # it has them
            pass
    import_timm.keep = library
    return importlib.import_module("timm")


def test_a_timm_deit_with_its_class_token():
    timm = import_timm()
    torch.manual_seed(0)
    model = timm.create_model(
        "deit_tiny_patch16_224", img_size=32, patch_size=4, embed_dim=48, depth=2, num_heads=3, num_classes=5
    )
    x = torch.randn(2, 3, 32, 32)
    (first, _) = check(model, lambda m: m(x), 2, layout=mhla.Grid((8, 8), block=(4, 4)))
    # The class token is one more block: rows of the attention still sum to one.
    q, k = torch.randn(2, 65, 3, 16), torch.randn(2, 65, 3, 16)
    ones = first._attend(q, k, torch.ones(2, 65, 3, 16), None, None)
    torch.testing.assert_close(ones, torch.ones_like(ones))


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
    check(Model(Plain()), lambda m: m(x), 1, layout=mhla.Sequence(block=4), tokens=12)
    other = torch.nn.MultiheadAttention(16, 2)
    with pytest.raises(ValueError, match="layers.0: MultiheadAttention"):
        mhla.replace_attention(Model(other), layout=mhla.Sequence(block=4), tokens=12)
