"""Blocks that run again in the backward pass: the same bits, random numbers included, with less kept."""

import mhla
import pytest
import torch

NAMES = ["tiny-deit", "tiny-vlt", "tiny-dit", "tiny-dig", "tiny-sana", "tiny-wan", "tiny-lm"]
OPTIONS = {"tiny-deit": dict(drop_path=0.5), "tiny-vlt": dict(drop_path=0.5), "tiny-dit": dict(dwconv=True)}


def stirred(name):
    """A network in training whose random parts, and what starts at zero, do something."""
    torch.manual_seed(0)
    model = mhla.models.create(name, attention="mhla", **OPTIONS.get(name, {}))
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.abs().sum():
                parameter.normal_(0, 0.02)
    return model.train(), model.example_inputs(4)


def passed(model, inputs, dtype=None):
    """Output, gradients, the numbers kept between the passes, and the next random number."""
    kept = 0

    def keep(tensor):
        nonlocal kept
        kept += tensor.numel()
        return tensor

    torch.manual_seed(1)
    model.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            output = model(*inputs)
    output.float().square().mean().backward()
    gradients = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
    return output.detach(), gradients, kept, torch.rand(())


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_recomputed_blocks_give_the_same_bits(name, dtype):
    model, inputs = stirred(name)
    wanted = passed(model, inputs, dtype)
    again = passed(model.recompute(), inputs, dtype)
    assert torch.equal(again[0], wanted[0]) and torch.equal(again[3], wanted[3])
    assert set(again[1]) == set(wanted[1])
    for key, gradient in wanted[1].items():
        assert torch.equal(again[1][key], gradient), key
    assert again[2] < 0.7 * wanted[2]
    assert passed(model.recompute(False), inputs, dtype)[2] == wanted[2]


@pytest.mark.parametrize("name", ["tiny-deit", "tiny-dit"])
def test_the_random_parts_are_there(name):
    """What the test above compares would be the same in every pass without them."""
    model, inputs = stirred(name)
    torch.manual_seed(1)
    first, second = model(*inputs), model(*inputs)
    assert not torch.equal(first, second)


def test_a_backward_pass_within_autocast_finds_its_weights():
    model, inputs = stirred("tiny-deit")
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model.recompute()(*inputs).float().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
