"""Networks against code of other packages, with weights written by those."""

import mhla
import pytest
import torch
from model_parity import assert_close, shake

diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("size", [16, 32])
def test_dit_is_that_of_diffusers(size):
    torch.manual_seed(0)
    theirs = shake(
        diffusers.DiTTransformer2DModel(
            num_attention_heads=3, attention_head_dim=16, in_channels=4, out_channels=8, num_layers=2,
            sample_size=size, patch_size=2, num_embeds_ada_norm=10, norm_elementwise_affine=False,
        )
    )  # fmt: skip
    with torch.no_grad():  # as in converted checkpoints: one embedder for all blocks
        first = theirs.transformer_blocks[0].norm1.emb.state_dict()
        for block in theirs.transformer_blocks[1:]:
            block.norm1.emb.load_state_dict(first)
    mine = mhla.models.create("tiny-dit", attention="softmax", image_size=8 * size, frequency_shift=1).eval()
    assert "diffusers" in mine.load(theirs.state_dict())
    x, t, y = torch.randn(2, 4, size, size), torch.tensor([3, 977]), torch.tensor([1, 10])
    with torch.no_grad():
        want = theirs(x, timestep=t, class_labels=y).sample
        assert_close(mine(x, t, y), want)


@pytest.mark.parametrize("tied", [True, False])
def test_transformer_plus_plus_is_llama(tied):
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, rms_norm_eps=1e-6, tie_word_embeddings=tied, rope_theta=10000.0,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = shake(transformers.LlamaForCausalLM(config))
    mine = mhla.models.create("tiny-lm", attention="softmax", tied=tied).eval()
    assert "Llama" in mine.load(theirs.state_dict())
    ids = torch.randint(256, (2, 83))  # longer than the context it was made for
    with torch.no_grad():
        assert_close(mine(ids), theirs(ids).logits)


@pytest.mark.parametrize("shape", [(3, 8, 12), (2, 6, 4)], ids=str)
def test_wan_is_that_of_diffusers(shape):
    torch.manual_seed(0)
    theirs = shake(
        diffusers.WanTransformer3DModel(
            patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=24, in_channels=16, out_channels=16,
            text_dim=24, freq_dim=256, ffn_dim=96, num_layers=2, cross_attn_norm=True,
            qk_norm="rms_norm_across_heads", eps=1e-6, rope_max_seq_len=64,
        )
    )  # fmt: skip
    mine = mhla.models.create("tiny-wan", attention="softmax").eval()
    assert "diffusers" in mine.load(theirs.state_dict())
    x, t, text = torch.randn(2, 16, *shape), torch.tensor([3, 977]), torch.randn(2, 16, 24)
    with torch.no_grad():
        want = theirs(x, timestep=t, encoder_hidden_states=text).sample
        assert_close(mine(x, t, text), want)


@pytest.mark.parametrize("size", [(8, 8), (6, 10)], ids=str)
def test_sana_is_that_of_diffusers(size):
    torch.manual_seed(0)
    theirs = shake(
        diffusers.SanaTransformer2DModel(
            in_channels=4, out_channels=4, num_attention_heads=4, attention_head_dim=16, num_layers=2,
            num_cross_attention_heads=2, cross_attention_head_dim=32, cross_attention_dim=64, caption_channels=24,
            mlp_ratio=2.5, sample_size=8, patch_size=1,
        )
    )  # fmt: skip
    mine = mhla.models.create("tiny-sana", attention="linear").eval()
    assert "diffusers" in mine.load(theirs.state_dict())
    x, t, text = torch.randn(2, 4, *size), torch.tensor([3, 977]), torch.randn(2, 12, 24)
    mask = torch.ones(2, 12).long()
    mask[1, 7:] = 0
    with torch.no_grad():
        want = theirs(x, encoder_hidden_states=text, timestep=t, encoder_attention_mask=mask).sample
        assert_close(mine(x, t, text, mask), want)


def test_files_travel_between_safetensors_and_here(tmp_path):
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    theirs = shake(
        diffusers.WanTransformer3DModel(
            patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=24, in_channels=16, out_channels=16,
            text_dim=24, freq_dim=256, ffn_dim=96, num_layers=2, cross_attn_norm=True,
            qk_norm="rms_norm_across_heads", eps=1e-6, rope_max_seq_len=64,
        )
    )  # fmt: skip
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    mine = mhla.models.create("tiny-wan", attention="softmax").eval()
    report = mine.load(tmp_path / "theirs.safetensors")
    assert "theirs.safetensors" in report and "diffusers" in report
    (written,) = mine.save(tmp_path / "mine.safetensors")
    again = load_file(written)
    assert again.keys() == mine.state_dict().keys()
    assert all(torch.equal(again[name], value) for name, value in mine.state_dict().items())
    mixed = mhla.models.create("tiny-wan", attention="mhla").eval()
    start = mixed.state_dict()["blocks.0.self_attn.block_attn.conv.weight"].clone()
    mixed.load(written)  # stock weights: the mixing matrix keeps its start
    assert torch.equal(mixed.state_dict()["blocks.1.self_attn.q.weight"], again["blocks.1.self_attn.q.weight"])
    assert torch.equal(mixed.state_dict()["blocks.0.self_attn.block_attn.conv.weight"], start)


def test_what_a_checkpoint_lacks_is_an_error_and_changes_nothing():
    mine = mhla.models.create("tiny-lm")
    before = {name: value.clone() for name, value in mine.state_dict().items()}
    other = mhla.models.create("tiny-lm").state_dict()
    del other["model.layers.1.mlp_norm.weight"]
    other["model.layers.1.mlp_nrm.weight"] = torch.zeros(64)
    with pytest.raises(RuntimeError, match="mlp_norm"):
        mine.load(other)
    assert all(torch.equal(before[name], value) for name, value in mine.state_dict().items())
