"""Attention of the VLT backbone (RAVLT, MAViT): RALA, MALA, and softmax in its late stages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import Attention, check_grid, check_heads, choose, depthwise, register

ops = torch.ops.mhla


def _pointwise(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """A 1x1 convolution, on tokens `[B, N, C]`."""
    return F.linear(x, layer.weight.flatten(1), layer.bias)


class GatedGridAttention(Attention):
    """One projection to q, k, v and a gate, 2-D rotary, a 5x5 depthwise convolution of v, output
    W(gate * (attention + convolution)). Names and shapes of RALA's release."""

    def __init__(self, dim: int, heads: int, *, grid: Sequence[int], core: str):
        super().__init__()
        check_heads("gated grid", dim, heads)
        self.core = choose("gated grid: core", core, ["rala", "mala", "softmax"])
        self.heads, self.grid = heads, check_grid("gated grid", grid, 2)
        self.qkvo = nn.Conv2d(dim, 4 * dim, 1)
        self.lepe = depthwise(dim, 5)
        self.proj = nn.Conv2d(dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x `[B, N, dim]` -> `[B, N, dim]`, N = height * width"""
        q, k, v, gate = _pointwise(self.qkvo, x).unflatten(-1, (4, self.heads, -1)).unbind(2)
        o = ops.grid_convolution(v, self.grid, self.lepe.weight, self.lepe.bias, self._attend(q, k, v))
        return _pointwise(self.proj, (o * gate).flatten(2))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.core == "rala":
            return ops.rala(q, k, v, self.grid)
        if self.core == "mala":
            return ops.mala(q, k, v, self.grid)
        return ops.softmax_attention(ops.rotary_grid(q, self.grid), ops.rotary_grid(k, self.grid), v)


@register("rala")
def rala(dim: int, heads: int, *, grid: Sequence[int]) -> GatedGridAttention:
    """Rank-augmented linear attention on a `(height, width)` grid."""
    return GatedGridAttention(dim, heads, grid=grid, core="rala")


@register("mala")
def mala(dim: int, heads: int, *, grid: Sequence[int]) -> GatedGridAttention:
    """Magnitude-aware linear attention on a `(height, width)` grid."""
    return GatedGridAttention(dim, heads, grid=grid, core="mala")
