"""Keeps mixing weights in range: after each update, or as a parametrisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def constrain_(model: nn.Module) -> int:
    """Clamps the mixing matrix of every MHLA layer in `model` to the range of that layer's `clamp`
    (none: left alone). Call it after `optimizer.step()`. Returns the number of layers
    in Python whose matrix was changed."""
    count = 0
    for module in model.modules():
        if hasattr(module, "constrain_mixing"):  # a network of mhla.models
            module.constrain_mixing()
            continue
        clamp = getattr(module, "mixing_clamp", None)
        if clamp is None:
            continue
        torch.ops.mhla.constrain_mixing_(module.mixing, clamp[0], clamp[1], module.renormalize_rows)
        count += 1
    return count


class Constrained(nn.Module):
    """The same as a parametrisation, for a training loop that cannot call `constrain_`:
    `torch.nn.utils.parametrize.register_parametrization(layer, "mixing", mhla.Constrained())`.
    Weights outside the range get the gradient of the nearest one inside (straight through)."""

    def __init__(self, low: float = 0.0, high: float = 1.0, renormalize_rows: bool = False):
        super().__init__()
        self.low, self.high, self.renormalize_rows = low, high, renormalize_rows

    def forward(self, mixing: Tensor) -> Tensor:
        """`[..., Mq, Mk]` -> the same shape, inside the range"""
        inside = mixing + (mixing.clamp(self.low, self.high) - mixing).detach()
        if not self.renormalize_rows:
            return inside
        sums = inside.sum(-1, keepdim=True)
        return torch.where(sums == 0, torch.full_like(inside, 1 / inside.shape[-1]), inside / sums)

    def right_inverse(self, mixing: Tensor) -> Tensor:
        return mixing
