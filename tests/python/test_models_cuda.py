"""Networks on a GPU in bf16, where norms, sums and convolutions share kernels, against the same
weights in f32 on the CPU, where each step is an operation of LibTorch's."""

import copy

import pytest
import torch
from conftest import needs_cuda

import mhla

NETWORKS = {
    "deit-s": dict(depth=2, drop_path=0),
    "dit-s/2": dict(depth=2),
    "dig-s/2": dict(depth=4, attention="gla"),
    "sana-0.6b": dict(depth=2, image_size=512, caption_dropout=0),
    "wan2.1-1.3b": dict(depth=1, video_size="9x64x96", blocks="3x2x3"),
    "lm-340m": dict(depth=2, context=256),
}


def made(name: str, attention: str | None, options: dict):
    torch.manual_seed(1)
    chosen = options if attention is None else {**options, "attention": attention}
    model = mhla.models.create(name, **chosen)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.eq(0).all():  # it would hide everything before it
                parameter.normal_(0, 0.02)
            parameter.copy_(parameter.bfloat16())
    return model.eval()


def inputs_of(name: str) -> list[torch.Tensor]:
    torch.manual_seed(2)
    if name == "deit-s":
        return [torch.randn(2, 3, 224, 224)]
    if name == "lm-340m":
        return [torch.randint(32000, (2, 256))]
    if name == "sana-0.6b":
        return [torch.randn(2, 32, 16, 16), torch.tensor([3.0, 700.0]), torch.randn(2, 20, 2304), torch.ones(2, 20)]
    if name == "wan2.1-1.3b":
        return [torch.randn(2, 16, 3, 8, 12), torch.tensor([3.0, 700.0]), torch.randn(2, 32, 4096)]
    return [torch.randn(2, 4, 32, 32), torch.tensor([3.0, 700.0]), torch.tensor([1, 7])]


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((got.detach().cpu().float() - wanted.detach()).norm() / wanted.detach().norm()).item()


@needs_cuda
@pytest.mark.parametrize("attention", ["own", "softmax"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_gpu_gives_the_results_and_gradients_of_the_cpu(name, attention):
    exact = made(name, None if attention == "own" else attention, NETWORKS[name])
    inputs = [x.bfloat16().float() if x.is_floating_point() else x for x in inputs_of(name)]
    fast = copy.deepcopy(exact).to("cuda", torch.bfloat16)
    on_gpu = [x.to("cuda", torch.bfloat16 if x.is_floating_point() else x.dtype) for x in inputs]
    wanted = exact(*inputs)
    with torch.no_grad():
        alone = fast(*on_gpu)
    got = fast(*on_gpu)
    assert error(alone, wanted) < 0.03 and error(got, wanted) < 0.03
    gradient = torch.randn(wanted.shape) / wanted.numel()
    wanted.backward(gradient)
    got.backward(gradient.to("cuda", got.dtype))
    names = dict(exact.named_parameters())
    for key, parameter in fast.named_parameters():
        if names[key].grad is not None and names[key].grad.norm() > 0:
            assert error(parameter.grad, names[key].grad) < 0.15, key
