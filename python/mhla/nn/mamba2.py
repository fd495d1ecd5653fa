"""Mamba2: one projection, a short convolution, the SSD recurrence, gate and norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import CausalAttention, State, check_heads, register, short_convolution, split_heads, wide
from .time_step import initial_decay_log, initial_step_bias

ops = torch.ops.mhla
HEAD_SIZE = 64


@register("mamba2")
class Mamba2(CausalAttention):
    """Names of the authors' Mamba2 and of transformers. The state is `[convolution, h]`.

    Args:
        heads: by default heads of 64 channels
        expand: inner width over `dim`
        state_size: channels of B and C
        groups: heads are divided among them; those of a group share B and C
    """

    def __init__(
        self,
        dim: int,
        heads: int = 0,
        *,
        expand: int = 2,
        state_size: int = 128,
        groups: int = 1,
        conv_size: int = 4,
        norm_eps: float = 1e-5,
        chunk: int = 64,
    ):
        super().__init__()
        self.inner, self.keys = expand * dim, groups * state_size
        self.heads = heads = heads or self.inner // HEAD_SIZE
        check_heads("mamba2", self.inner, heads)
        check_heads("mamba2", heads, groups)
        self.groups, self.norm_eps, self.chunk = groups, norm_eps, chunk
        convolved = self.inner + 2 * self.keys
        self.in_proj = nn.Linear(dim, self.inner + convolved + heads, bias=False)  # z, x B C, dt
        self.conv1d = short_convolution(convolved, conv_size, bias=True)
        self.dt_bias = nn.Parameter(initial_step_bias(heads))
        self.A_log = nn.Parameter(initial_decay_log(heads, 1.0))
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = nn.RMSNorm(self.inner, eps=norm_eps)
        self.out_proj = nn.Linear(self.inner, dim, bias=False)

    def step(self, x: Tensor, state: State = ()) -> tuple[Tensor, State]:
        """x `[B, N, dim]` continues the sequence of `state`."""
        earlier = state or (None, None)
        z, xbc, dt = self.in_proj(x).split([self.inner, self.inner + 2 * self.keys, self.heads], -1)
        xbc, last = ops.short_convolution(xbc, self.conv1d.weight, self.conv1d.bias, earlier[0])
        inputs, b, c = xbc.split([self.inner, self.keys, self.keys], -1)
        logits = wide(dt)
        dt = F.softplus(logits + self.dt_bias.to(logits.dtype))
        a = self.A_log.to(logits.dtype).exp().neg()
        b, c = split_heads(b, self.groups), split_heads(c, self.groups)
        y, h = ops.ssd(split_heads(inputs, self.heads), dt, a, b, c, self.D, earlier[1], self.chunk)
        y = ops.gate_then_norm(y.flatten(2), z, self.norm.weight, self.norm_eps)
        return self.out_proj(y), (last, h)
