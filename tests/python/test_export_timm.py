"""timm, which has an environment of its own, loads what is exported for it."""

import mhla
import pytest
import torch
from model_parity import assert_close, shake
from test_replace_timm import import_timm

SIZE = dict(img_size=32, patch_size=4, embed_dim=48, depth=2, num_heads=3, num_classes=10)


@pytest.mark.parametrize("class_token", [True, False])
def test_timm_loads_deit(class_token, tmp_path):
    timm = import_timm()
    torch.manual_seed(0)
    mine = shake(mhla.models.create("tiny-deit", attention="softmax", class_token=class_token)).eval()
    pooling = {} if class_token else dict(class_token=False, global_pool="avg")
    theirs = timm.models.vision_transformer.VisionTransformer(**SIZE, **pooling).eval()
    theirs.load_state_dict(mine.export("timm"))  # strict
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert_close(mine(x), theirs(x))
    mine.save(tmp_path / "x.safetensors", "timm", dtype="bf16")
    timm.models.load_checkpoint(theirs, str(tmp_path / "x.safetensors"))
    with torch.no_grad():
        assert_close(mine(x), theirs(x), tolerance=0.05)
