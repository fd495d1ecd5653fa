"""Linear attention for pictures in DeiT's place: focused (FLatten) and InLine."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import Attention, check_grid, check_heads, depthwise, register, split_heads

ops = torch.ops.mhla


@register("focused")
class FocusedAttention(Attention):
    """Focused linear attention; the depthwise convolution of v is shared by the heads.

    Args:
        grid: `(height, width)` of the tokens
        kernel: size of the convolution
        power: how much queries and keys are sharpened
    """

    def __init__(
        self, dim: int, heads: int, *, grid: Sequence[int], kernel: int = 5, power: float = 3.0, qkv_bias: bool = True
    ):
        super().__init__()
        check_heads("focused", dim, heads)
        self.heads, self.grid, self.power = heads, check_grid("focused", grid, 2), power
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.dwc = depthwise(dim // heads, kernel)
        self.positional_encoding = nn.Parameter(torch.zeros(1, grid[0] * grid[1], dim))  # added to k
        self.scale = nn.Parameter(torch.zeros(1, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        """x `[B, N, dim]` -> `[B, N, dim]`, N = height * width"""
        q, k, v = self.qkv(x).chunk(3, -1)
        q, v = split_heads(q, self.heads), split_heads(v, self.heads)
        # Under autocast the projection is 16-bit, and f32 positions would widen what follows.
        k = split_heads(k + self.positional_encoding.to(k.dtype), self.heads)
        o = ops.focused_attention(q, k, v, self.scale, self.power)
        o = ops.grid_convolution(v, self.grid, self.dwc.weight, self.dwc.bias, o)
        return self.proj(o.flatten(2))


@register("inline")
class InlineAttention(Attention):
    """InLine attention; each picture makes its own 3x3 depthwise kernel.

    Args:
        grid: `(height, width)` of the tokens
        class_token: one token stands before those of the grid; the convolution skips it
    """

    def __init__(
        self, dim: int, heads: int, *, grid: Sequence[int], class_token: bool = False, qkv_bias: bool = True
    ):
        super().__init__()
        check_heads("inline", dim, heads)
        self.heads, self.grid, self.class_token = heads, check_grid("inline", grid, 2), class_token
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.residual = nn.Sequential(
            nn.Conv1d(dim, dim, 1, groups=heads), nn.GELU(), nn.Conv1d(dim, 9 * dim, 1, groups=heads)
        )

    def forward(self, x: Tensor) -> Tensor:
        """x `[B, N, dim]` -> `[B, N, dim]`, N = height * width, and one more with a class token"""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        o = ops.inline_attention(q, k, v).flatten(2)
        return self.proj(o + self._local(x, v))

    def _local(self, x: Tensor, v: Tensor) -> Tensor:
        # The pictures' kernels differ, so the batch becomes channels of one depthwise convolution.
        kernels = self.residual(x.mean(1).unsqueeze(-1)).reshape(-1, 1, 3, 3)  # [B * C, 1, 3, 3]
        tokens = v.flatten(2)[:, 1 if self.class_token else 0 :]
        picture = tokens.transpose(1, 2).reshape(1, -1, *self.grid)
        y = F.conv2d(picture, kernels, padding=1, groups=kernels.shape[0])
        rows = y.reshape(x.shape[0], -1, tokens.shape[1]).transpose(1, 2)
        return F.pad(rows, (0, 0, 1, 0)) if self.class_token else rows
