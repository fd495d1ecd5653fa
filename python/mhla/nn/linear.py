"""Linear attention without decay: the authors' DeiT baseline, DiT, Sana, Wan, and language."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import Attention, check_grid, check_heads, choose, register, split_heads
from .gated import CausalLinearAttention

ops = torch.ops.mhla
SANA_EPS = 1e-8


class LinearAttention(Attention):
    """classification (the authors' baseline): RMSNorm over the full width of q and k, no bias in
    `to_qkv`, output `to_out.0`. dit, text_to_image (Sana): `qkv` and `proj`, denominator + 1e-8."""

    def __init__(self, dim: int, heads: int, *, task: str = "classification"):
        super().__init__()
        check_heads("linear", dim, heads)
        choose("linear: task", task, ["classification", "dit", "text_to_image"])
        self.heads, self.task = heads, task
        self.eps = 1e-6 if task == "classification" else SANA_EPS
        if task == "classification":
            self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
            self.q_norm, self.k_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
            self.to_out = nn.Sequential(nn.Linear(dim, dim))
        else:
            self.qkv = nn.Linear(dim, 3 * dim, bias=task == "dit")
            self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """x `[B, N, dim]` -> `[B, N, dim]`"""
        own = self.task == "classification"
        q, k, v = (self.to_qkv if own else self.qkv)(x).chunk(3, -1)
        if own:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (split_heads(t, self.heads) for t in (q, k, v))
        o = ops.linear_attention(q, k, v, "relu", self.eps).flatten(2)
        return (self.to_out if own else self.proj)(o)


class VideoLinearAttention(Attention):
    """video: q, k, v, o and RMSNorm as Wan has them; rotary after ReLU, plain denominator."""

    def __init__(self, dim: int, heads: int, *, grid: Sequence[int]):
        super().__init__()
        check_heads("linear", dim, heads)
        self.heads, self.grid = heads, check_grid("linear", grid, 3)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.norm_q, self.norm_k = nn.RMSNorm(dim, eps=1e-6), nn.RMSNorm(dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """x `[B, N, dim]` -> `[B, N, dim]`, N = frames * height * width"""
        q = F.relu(split_heads(self.norm_q(self.q(x)), self.heads))
        k = F.relu(split_heads(self.norm_k(self.k(x)), self.heads))
        v = split_heads(self.v(x), self.heads)
        turned = ops.rotary_axes(q, self.grid), ops.rotary_axes(k, self.grid)
        o = ops.linear_attention(*turned, v, "identity", SANA_EPS, q, k)
        return self.o(o.flatten(2))


@register("linear")
def linear(
    dim: int,
    heads: int,
    *,
    task: str = "classification",
    grid: Sequence[int] = (),
    expand_k: float = 0.5,
    expand_v: float = 1.0,
    norm_eps: float = 1e-6,
    chunk: int = 64,
) -> Attention:
    """Linear attention for a task: `classification`, `dit`, `text_to_image`, `video` or `language`."""
    choose("linear: task", task, ["classification", "dit", "text_to_image", "video", "language"])
    if task == "video":
        return VideoLinearAttention(dim, heads, grid=grid)
    if task == "language":
        return CausalLinearAttention(
            dim, heads, expand_k=expand_k, expand_v=expand_v, norm_eps=norm_eps, chunk=chunk
        )
    return LinearAttention(dim, heads, task=task)
