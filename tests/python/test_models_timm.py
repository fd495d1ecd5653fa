"""DeiT against timm, which has an environment of its own."""

import mhla
import pytest
import torch
from model_parity import assert_close, shake
from test_replace_timm import import_timm


def theirs(**options):
    timm = import_timm()
    torch.manual_seed(0)
    return shake(
        timm.models.vision_transformer.VisionTransformer(
            img_size=32, patch_size=4, embed_dim=48, depth=2, num_heads=3, num_classes=10, **options
        )
    )


def test_stock_deit_is_timms():
    model = theirs()
    mine = mhla.models.create("tiny-deit", attention="softmax").eval()
    mine.load(model.state_dict())
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert_close(mine(x), model(x))


@pytest.mark.parametrize("size", [(48, 48), (32, 64)], ids=str)
def test_another_resolution_is_timms_too(size):
    model = theirs(dynamic_img_size=True)
    mine = mhla.models.create("tiny-deit", attention="softmax").eval()
    mine.load(model.state_dict())
    x = torch.randn(2, 3, *size)
    with torch.no_grad():
        assert_close(mine(x), model(x))


def test_a_stock_checkpoint_becomes_an_mhla_network():
    model = theirs()
    mine = mhla.models.create("tiny-deit", attention="mhla")
    report = mine.load(model.state_dict())
    got, state = mine.state_dict(), model.state_dict()
    assert torch.equal(got["blocks.0.attn.to_qkv.weight"], state["blocks.0.attn.qkv.weight"])
    assert torch.equal(got["blocks.1.attn.to_out.0.bias"], state["blocks.1.attn.proj.bias"])
    assert torch.equal(got["pos_embed"], state["pos_embed"][:, 1:])
    assert torch.equal(got["fc_norm.weight"], state["norm.weight"])
    assert "class token" in report and "left out" in report
