"""Networks at sizes that nobody planned: odd, not square, not divided by the blocks, fewer tokens than blocks."""

import mhla
import pytest
import torch
from model_parity import assert_close, shake

PICTURES = ["mhla", "softmax", "linear", "focused", "inline", "mala", "rala", "retnet", "gla", "gated_deltanet", "mamba2"]
LANGUAGE = ["mhla", "softmax", "linear", "retnet", "gla", "simple_gla", "gated_deltanet", "mamba2"]


def picture(*size):
    return [torch.randn(1, 3, *size)]


def latent(*size):
    return [torch.randn(1, 4, *size), torch.tensor([3.0]), torch.tensor([1])]


def with_text(*size):
    return [torch.randn(1, 4, *size), torch.tensor([3.0]), torch.randn(1, 5, 24), torch.ones(1, 5)]


def video(*size):
    return [torch.randn(1, 16, *size), torch.tensor([3.0]), torch.randn(1, 5, 24)]


# name, option of its size, inputs, [what it is made for, what it is given]
SIZES = [
    ("tiny-deit", "image_size", picture, [((32, 32), (32, 32)), ((28, 20), (28, 20)), ((4, 4), (4, 4)), ((32, 64), (32, 64))]),
    ("tiny-vlt", "image_size", picture, [((64, 64), (64, 64)), ((50, 34), (50, 34)), ((8, 8), (8, 8)), ((40, 72), (40, 72))]),
    ("tiny-dit", "image_size", latent, [((128, 128), (16, 16)), ((112, 80), (14, 10)), ((16, 16), (2, 2)), ((48, 80), (6, 10))]),
    ("tiny-dig", "image_size", latent, [((128, 128), (16, 16)), ((112, 80), (14, 10)), ((16, 16), (2, 2)), ((48, 80), (6, 10))]),
    ("tiny-sana", "image_size", with_text, [((256, 256), (8, 8)), ((224, 160), (7, 5)), ((32, 32), (1, 1)), ((96, 160), (3, 5))]),
    ("tiny-wan", "video_size", video, [((9, 64, 96), (3, 8, 12)), ((5, 48, 80), (2, 6, 10)), ((1, 16, 16), (1, 2, 2))]),
]  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("attention", PICTURES)
@pytest.mark.parametrize("name, option, inputs, sizes", SIZES, ids=[row[0] for row in SIZES])
def test_every_size_is_made_and_run(name, option, inputs, sizes, attention):
    torch.manual_seed(0)
    for made_for, _ in sizes:
        model = mhla.models.create(name, attention=attention, **{option: made_for}).eval()
        for _, given in sizes:
            x = inputs(*given)
            y = model(*x)
            assert torch.isfinite(y).all()
            if name not in ("tiny-deit", "tiny-vlt"):
                assert y.shape[2:] == x[0].shape[2:]


@torch.no_grad()
@pytest.mark.parametrize("name, option, inputs, sizes", SIZES[1:], ids=[row[0] for row in SIZES[1:]])
def test_weights_moved_to_another_size_compute_what_the_network_does_there(name, option, inputs, sizes):
    torch.manual_seed(0)
    whole = shake(mhla.models.create(name, **{option: sizes[0][0]}, attention="mhla"))
    if "dit" in name or "dig" in name:  # positions that are computed
        whole.get_parameter("pos_embed").copy_(mhla.models.create(name).get_parameter("pos_embed"))
    for made_for, given in sizes[1:]:
        other = mhla.models.create(name, **{option: made_for}, attention="mhla").eval()
        other.load(whole.state_dict())
        x = inputs(*given)
        assert_close(other(*x), whole(*x))


@torch.no_grad()
@pytest.mark.parametrize("attention", LANGUAGE)
def test_language_models_read_any_number_of_tokens(attention):
    torch.manual_seed(0)
    for context in (64, 50, 1):
        model = shake(mhla.models.create("tiny-lm", attention=attention, context=context))
        for tokens in (1, 7, 50, 100):
            ids = torch.randint(256, (1, tokens))
            whole = model(ids)
            assert torch.isfinite(whole).all()
            if tokens > context:
                continue
            state = model.init_state()
            pieces = [model.step(piece, state) for piece in ids.split(max(tokens // 2, 1), 1)]
            assert_close(torch.cat(pieces, 1), whole, 1e-4)
