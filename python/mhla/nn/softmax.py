"""Softmax attention as it stands in DeiT and DiT, in Wan, in Transformer++ and in the VLT backbone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .attention import Attention, CausalAttention, State, check_grid, check_heads, choose, register, split_heads
from .gated_grid import GatedGridAttention

ops = torch.ops.mhla


class SoftmaxAttention(Attention):
    """classification, dit: `qkv` and `proj`, timm's names."""

    def __init__(self, dim: int, heads: int, *, qkv_bias: bool = True):
        super().__init__()
        check_heads("softmax", dim, heads)
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """x `[B, N, dim]` -> `[B, N, dim]`"""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        return self.proj(ops.softmax_attention(q, k, v).flatten(2))


class VideoSoftmaxAttention(Attention):
    """video: RMSNorm over the full width of q and k, 3-D rotary; Wan's names."""

    def __init__(self, dim: int, heads: int, *, grid: Sequence[int]):
        super().__init__()
        check_heads("softmax", dim, heads)
        self.heads, self.grid = heads, check_grid("softmax", grid, 3)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.norm_q, self.norm_k = nn.RMSNorm(dim, eps=1e-6), nn.RMSNorm(dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """x `[B, N, dim]` -> `[B, N, dim]`, N = frames * height * width"""
        q = split_heads(self.norm_q(self.q(x)), self.heads)
        k = split_heads(self.norm_k(self.k(x)), self.heads)
        v = split_heads(self.v(x), self.heads)
        o = ops.softmax_attention(ops.rotary_axes(q, self.grid), ops.rotary_axes(k, self.grid), v)
        return self.o(o.flatten(2))


class CausalSoftmaxAttention(CausalAttention):
    """language: causal, rotary, no bias; flash-linear-attention's names. The state is `[k, v]`."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        check_heads("softmax", dim, heads)
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def step(self, x: Tensor, state: State = ()) -> tuple[Tensor, State]:
        """x `[B, N, dim]` continues the sequence of `state`."""
        position = torch.full((), state[0].shape[1], dtype=torch.long, device=x.device) if state else None
        q = ops.rotary(split_heads(self.q_proj(x), self.heads), offset=position)
        k = ops.rotary(split_heads(self.k_proj(x), self.heads), offset=position)
        v = split_heads(self.v_proj(x), self.heads)
        if state:
            k, v = torch.cat([state[0], k], 1), torch.cat([state[1], v], 1)
        o = ops.softmax_attention(q, k, v, causal=True)
        return self.o_proj(o.flatten(2)), (k, v)


@register("softmax")
def softmax(
    dim: int, heads: int, *, task: str = "classification", grid: Sequence[int] = (), qkv_bias: bool = True
) -> Attention:
    """Softmax attention for a task: `classification`, `dit`, `video`, `language` or `vlt`."""
    choose("softmax: task", task, ["classification", "dit", "video", "language", "vlt"])
    if task == "video":
        return VideoSoftmaxAttention(dim, heads, grid=grid)
    if task == "language":
        return CausalSoftmaxAttention(dim, heads)
    if task == "vlt":
        return GatedGridAttention(dim, heads, grid=grid, core="softmax")
    return SoftmaxAttention(dim, heads, qkv_bias=qkv_bias)
