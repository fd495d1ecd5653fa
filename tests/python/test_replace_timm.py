"""replace_attention on a vision transformer of timm, which has an environment of its own."""

import importlib
import importlib.util
import sys

import pytest
import torch
from swapping import check

import mhla


def import_timm():
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed here; it has an environment of its own")
    try:
        return importlib.import_module("timm")
    except RuntimeError:
        # Beside a CPU build of torch, torchvision looks for operators that its wheel lacks.
        for name in [name for name in sys.modules if name.partition(".")[0] in ("timm", "torchvision")]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import_timm.keep = library  # definitions live as long as their library
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
