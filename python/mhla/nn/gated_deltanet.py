"""Gated DeltaNet: short convolutions, unit queries and keys, the gated delta rule, head norm and gate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import CausalAttention, State, check_heads, register, short_convolution, split_heads, wide
from .time_step import initial_decay_log, initial_step_bias

ops = torch.ops.mhla


@register("gated_deltanet")
class GatedDeltaNet(CausalAttention):
    """Names of flash-linear-attention. The state is the inputs that each convolution still needs, then S.

    Args:
        head_dim: of q and k; by default all heads together are 3/4 of `dim`
        expand_v: width of v over that of k
        conv_size: tokens that a short convolution sees
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        head_dim: int = 0,
        expand_v: float = 2.0,
        conv_size: int = 4,
        norm_eps: float = 1e-6,
        chunk: int = 64,
    ):
        super().__init__()
        if head_dim == 0:
            check_heads("gated_deltanet", 3 * dim, 4 * heads)
            head_dim = 3 * dim // (4 * heads)
        dim_k, head_v = heads * head_dim, round(head_dim * expand_v)
        dim_v = heads * head_v
        check_heads("gated_deltanet", dim_v, heads)
        self.heads, self.norm_eps, self.chunk = heads, norm_eps, chunk
        self.q_proj = nn.Linear(dim, dim_k, bias=False)
        self.k_proj = nn.Linear(dim, dim_k, bias=False)
        self.v_proj = nn.Linear(dim, dim_v, bias=False)
        self.a_proj = nn.Linear(dim, heads, bias=False)
        self.b_proj = nn.Linear(dim, heads, bias=False)
        self.A_log = nn.Parameter(initial_decay_log(heads, 0.0))
        self.dt_bias = nn.Parameter(initial_step_bias(heads))
        self.q_conv1d = short_convolution(dim_k, conv_size, bias=False)
        self.k_conv1d = short_convolution(dim_k, conv_size, bias=False)
        self.v_conv1d = short_convolution(dim_v, conv_size, bias=False)
        self.g_proj = nn.Linear(dim, dim_v, bias=False)
        self.o_norm = nn.RMSNorm(head_v, eps=norm_eps)
        self.o_proj = nn.Linear(dim_v, dim, bias=False)

    def step(self, x: Tensor, state: State = ()) -> tuple[Tensor, State]:
        """x `[B, N, dim]` continues the sequence of `state`."""
        earlier = state or (None,) * 4
        streams, after = [], []
        pairs = [(self.q_proj, self.q_conv1d), (self.k_proj, self.k_conv1d), (self.v_proj, self.v_conv1d)]
        for (project, convolution), before in zip(pairs, earlier):
            y, last = ops.short_convolution(project(x), convolution.weight, None, before)
            streams.append(split_heads(y, self.heads))
            after.append(last)
        q, k, v = ops.unit_norm(streams[0]), ops.unit_norm(streams[1]), streams[2]
        beta = wide(self.b_proj(x)).sigmoid()
        logits = wide(self.a_proj(x))
        g = F.softplus(logits + self.dt_bias.to(logits.dtype)) * self.A_log.to(logits.dtype).exp().neg()
        o, S = ops.gated_delta_rule(q, k, v, g, beta, state=earlier[3], chunk=self.chunk)
        gate = split_heads(self.g_proj(x), self.heads)
        y = ops.gated_head_norm(o, gate, self.o_norm.weight, self.norm_eps)
        return self.o_proj(y.flatten(2)), (*after, S)
