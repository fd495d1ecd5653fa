"""Language layers that share a shape: causal linear attention, RetNet, GLA and simple GLA."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import CausalAttention, State, check_heads, register, split_heads, wide

ops = torch.ops.mhla


def _width(name: str, dim: int, expand: float) -> int:
    exact = dim * expand
    if exact != round(exact):
        raise ValueError(f"[mhla.nn] {name}: {dim} times this is {exact}, not a whole width")
    return int(exact)


class GatedAttention(CausalAttention):
    """q, k, v, a causal recurrence, RMSNorm over each head times SiLU of a gate, output projection.
    Names of flash-linear-attention.

    Args:
        expand_k, expand_v: widths of k and v over `dim`
        chunk: tokens that are computed together
    """

    def __init__(
        self, dim: int, heads: int, *, expand_k: float, expand_v: float, norm_eps: float = 1e-6, chunk: int = 64
    ):
        super().__init__()
        dim_k, dim_v = _width("expand_k", dim, expand_k), _width("expand_v", dim, expand_v)
        check_heads("k", dim_k, heads)
        check_heads("v", dim_v, heads)
        self.heads, self.dim_k, self.norm_eps, self.chunk = heads, dim_k, norm_eps, chunk
        self.q_proj = nn.Linear(dim, dim_k, bias=False)
        self.k_proj = nn.Linear(dim, dim_k, bias=False)
        self.v_proj = nn.Linear(dim, dim_v, bias=False)
        self.g_proj = nn.Linear(dim, dim_v, bias=False)
        self.o_proj = nn.Linear(dim_v, dim, bias=False)
        self.g_norm_swish_gate = nn.RMSNorm(dim_v // heads, eps=norm_eps)

    def step(self, x: Tensor, state: State = ()) -> tuple[Tensor, State]:
        """x `[B, N, dim]` continues the sequence of `state`."""
        q, k, v = (split_heads(project(x), self.heads) for project in (self.q_proj, self.k_proj, self.v_proj))
        o, after = self._recur(q, k, v, x, state)
        gate = split_heads(self.g_proj(x), self.heads)
        y = ops.gated_head_norm(o, gate, self.g_norm_swish_gate.weight, self.norm_eps)
        return self.o_proj(y.flatten(2)), after

    def _recur(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State) -> tuple[Tensor, State]:
        raise NotImplementedError


def _position_after(x: Tensor, state: State) -> Tensor:
    # A tensor, so that a step needs no synchronisation.
    start = state[1] if state else torch.zeros((), dtype=torch.long, device=x.device)
    return start + x.shape[1]


class CausalLinearAttention(GatedAttention):
    """ReLU, then rotary, as MHLA's language layer; the state is `[S, position]`."""

    def __init__(self, dim: int, heads: int, *, expand_k: float = 0.5, expand_v: float = 1.0, **options):
        super().__init__(dim, heads, expand_k=expand_k, expand_v=expand_v, **options)

    def _recur(self, q, k, v, x, state):
        before, start = (state[0], state[1]) if state else (None, None)
        q, k = ops.rotary(F.relu(q), offset=start), ops.rotary(F.relu(k), offset=start)
        o, after = ops.causal_linear_attention(q, k, v, state=before, chunk=self.chunk)
        return o, (after, _position_after(x, state))


@register("retnet")
class Retention(GatedAttention):
    """RetNet's multi-scale retention; the state is `[S, position]`."""

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        expand_k: float = 1.0,
        expand_v: float = 2.0,
        norm_eps: float = 1e-6,
        chunk: int = 64,
    ):
        super().__init__(dim, heads, expand_k=expand_k, expand_v=expand_v, norm_eps=norm_eps, chunk=chunk)

    def _recur(self, q, k, v, x, state):
        before, start = (state[0], state[1]) if state else (None, None)
        q, k = ops.rotary(q, offset=start), ops.rotary(k, offset=start)
        o, after = ops.retention(q, k, v, state=before, chunk=self.chunk)
        return o, (after, _position_after(x, state))


@register("gla")
class GatedLinearAttention(GatedAttention):
    """Gated linear attention: one decay per key channel, from a projection of low rank. The state is `[S]`.

    Args:
        gate_rank: rank of that projection
        gate_normalizer: log decay = logsigmoid(.) / this
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        expand_k: float = 0.5,
        expand_v: float = 1.0,
        norm_eps: float = 1e-6,
        chunk: int = 64,
        gate_rank: int = 16,
        gate_normalizer: float = 16.0,
    ):
        super().__init__(dim, heads, expand_k=expand_k, expand_v=expand_v, norm_eps=norm_eps, chunk=chunk)
        self.gate_normalizer = gate_normalizer
        self.gk_proj = nn.Sequential(nn.Linear(dim, gate_rank, bias=False), nn.Linear(gate_rank, self.dim_k))

    def _recur(self, q, k, v, x, state):
        g = F.logsigmoid(wide(split_heads(self.gk_proj(x), self.heads))) / self.gate_normalizer
        o, after = ops.gla(q, k, v, g, state=state[0] if state else None, chunk=self.chunk)
        return o, (after,)


@register("simple_gla")
class SimpleGatedLinearAttention(GatedAttention):
    """GLA with one decay per head, `gk_proj`: dim -> heads. The state is `[S]`."""

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        expand_k: float = 1.0,
        expand_v: float = 1.0,
        norm_eps: float = 1e-6,
        chunk: int = 64,
        gate_normalizer: float = 16.0,
    ):
        super().__init__(dim, heads, expand_k=expand_k, expand_v=expand_v, norm_eps=norm_eps, chunk=chunk)
        self.gate_normalizer = gate_normalizer
        self.gk_proj = nn.Linear(dim, heads)

    def _recur(self, q, k, v, x, state):
        g = F.logsigmoid(wide(self.gk_proj(x))) / self.gate_normalizer
        o, after = ops.simple_gla(q, k, v, g, state=state[0] if state else None, chunk=self.chunk)
        return o, (after,)
