"""The authors' layers for DiT and Wan as they compute them (spec 1.3, 1.5, 1.9), in plain PyTorch.

Written from the formulas. They take the parameters of `mhla.nn.MHLA`, so that outputs can be compared.
"""

import mhla  # noqa: F401  (registers torch.ops.mhla)
import torch
import torch.nn.functional as F
from torch import nn


def to_blocks(x, grid, blocks):
    """[B, N, ...] in raster order -> [B, M, Nb, ...]"""
    axes = len(grid)
    x = x.unflatten(1, [v for g, n in zip(grid, blocks) for v in (n, g // n)])
    outer, inner = range(1, 2 * axes, 2), range(2, 2 * axes + 1, 2)
    x = x.permute(0, *outer, *inner, *range(2 * axes + 1, x.dim()))
    return x.flatten(axes + 1, 2 * axes).flatten(1, axes)


def from_blocks(x, grid, blocks):
    """[B, M, Nb, ...] -> [B, N, ...]"""
    axes = len(grid)
    x = x.unflatten(2, [g // n for g, n in zip(grid, blocks)]).unflatten(1, list(blocks))
    order = [v for axis in range(axes) for v in (1 + axis, 1 + axes + axis)]
    return x.permute(0, *order, *range(2 * axes + 1, x.dim())).flatten(1, 2 * axes)


def heads_first(x, heads):
    """[B, M, Nb, C] -> [B * H, M, Nb, D]"""
    return x.unflatten(-1, (heads, -1)).permute(0, 3, 1, 2, 4).flatten(0, 1)


def mix(mixing, x):
    """A 1x1 convolution over blocks: x [B * H, M, ...]"""
    weight = mixing.to(x.dtype)[:, :, None, None]
    return F.conv2d(x if x.dim() == 4 else x.unsqueeze(-1), weight).reshape(x.shape)


class _Layer(nn.Module):
    def __init__(self, ours, grid, blocks):
        super().__init__()
        self.heads, self.grid, self.blocks = ours.heads, grid, blocks
        for name, child in ours.named_children():
            self.add_module(name, child)
        self.mixing = ours.mixing


class DiT(_Layer):
    """x [B, M, Nb, C]: tokens stay in block order between layers, as in the authors' model."""

    def forward(self, x):
        batch = x.shape[0]
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        qh, kh, vh = (heads_first(t, self.heads) for t in (q, k, v))
        qh, kh = F.relu(qh) + 1e-6, F.relu(kh) + 1e-6
        summaries = mix(self.mixing, kh.transpose(-1, -2) @ vh)
        numerator = qh @ summaries
        own = qh @ kh.sum(-2).unsqueeze(-1)  # [B * H, M, Nb, 1]
        o = numerator / (mix(self.mixing, own) + 1e-6)
        o = o.unflatten(0, (batch, self.heads)).permute(0, 2, 3, 1, 4).flatten(3)
        picture = from_blocks(v, self.grid, self.blocks).transpose(1, 2).unflatten(-1, self.grid)
        local = F.conv2d(
            picture, self.lepe.weight, self.lepe.bias, padding=self.lepe.padding, groups=picture.shape[1]
        )
        local = to_blocks(local.flatten(2).transpose(1, 2), self.grid, self.blocks)
        return self.out(o + local)


class Wan(_Layer):
    """x [B, N, C] in raster order; q, k, v are permuted in every call, as in the authors' model. Positions
    are turned by the operation that the other layers use."""

    def forward(self, x):
        batch = x.shape[0]
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = (
            torch.ops.mhla.rotary_axes(F.relu(norm(t)).unflatten(-1, (self.heads, -1)) + 1e-6, self.grid).flatten(2)
            for norm, t in ((self.q_norm, q), (self.k_norm, k))
        )
        q, k, v = (heads_first(to_blocks(t, self.grid, self.blocks), self.heads) for t in (q, k, v))
        o = q @ mix(self.mixing, k.transpose(-1, -2) @ v)
        o = self.out_norm(o).unflatten(0, (batch, self.heads)).permute(0, 2, 3, 1, 4).flatten(3)
        return self.out(from_blocks(o, self.grid, self.blocks))

