"""The baselines as spec.md section 4 writes them: dense, or token by token; slow and plain."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def softmax(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    if causal:
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        scores = scores.masked_fill(~seen, float("-inf"))
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)


def linear(q: Tensor, k: Tensor, v: Tensor, *, eps: float = 1e-6) -> Tensor:
    scores = torch.einsum("bihd,bjhd->bhij", q.relu(), k.relu())
    below = scores.sum(-1).transpose(1, 2).unsqueeze(-1) + eps
    return torch.einsum("bhij,bjhd->bihd", scores, v) / below


def focused(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
    def focus(x):
        flat = (x.flatten(2).relu() + 1e-6) / F.softplus(scale)
        return (flat.norm(dim=-1, keepdim=True) * flat**3 / (flat**3).norm(dim=-1, keepdim=True)).view_as(x)

    q, k = focus(q), focus(k)
    mean_k = k.mean(1)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / k.shape[1]
    below = torch.einsum("bihd,bhd->bih", q, mean_k).unsqueeze(-1) + 1e-6
    return torch.einsum("bhij,bjhd->bihd", scores, v) / below


def inline(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s, n = q.shape[-1] ** -0.5, k.shape[1]
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * s
    scores = scores / n + (1 - scores.sum(-1, keepdim=True) / n) / n  # rows sum to 1
    return torch.einsum("bhij,bjhd->bihd", scores, v)


def turn_on_grid(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """RALA's rotary, one token and one pair of channels at a time."""
    out, width = x.clone(), x.shape[-1]
    pairs = width // 4
    for token in range(x.shape[1]):
        for j in range(width // 2):
            position = token // grid[1] if j < pairs else token % grid[1]
            angle = torch.tensor(position * 10000.0 ** -((j % pairs) / max(pairs - 1, 1)), dtype=torch.float64)
            a, b = x[:, token, :, 2 * j], x[:, token, :, 2 * j + 1]
            out[:, token, :, 2 * j] = a * angle.cos() - b * angle.sin()
            out[:, token, :, 2 * j + 1] = b * angle.cos() + a * angle.sin()
    return out


def rala(q: Tensor, k: Tensor, v: Tensor, grid: tuple[int, int]) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    n, s = k.shape[1], q.shape[-1] ** -0.5
    alpha = n * torch.einsum("bhd,bjhd->bjh", q.mean(1), k).mul(s).softmax(1)
    k = k * alpha.unsqueeze(-1)
    below = torch.einsum("bihd,bhd->bih", q, k.mean(1)).unsqueeze(-1) + 1e-6
    scores = torch.einsum("bihd,bjhd->bhij", turn_on_grid(q, grid), turn_on_grid(k, grid)) / n
    return torch.einsum("bhij,bjhd->bihd", scores, v) / below


def mala(q: Tensor, k: Tensor, v: Tensor, grid: tuple[int, int]) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    n, s = k.shape[1], q.shape[-1] ** -0.5
    z = s * torch.einsum("bihd,bhd->bih", q, k.mean(1)).unsqueeze(-1)
    scores = torch.einsum("bihd,bjhd->bhij", turn_on_grid(q, grid), turn_on_grid(k, grid)) * (s / n)
    read = torch.einsum("bhij,bjhd->bihd", scores, v)
    return read * (1 + 1 / (z + 1e-6)) - z * v.mean(1, keepdim=True)


def recurrence(q, k, v, g=None, beta=None, *, scale=None, state=None) -> tuple[Tensor, Tensor]:
    """S_t = exp(g_t) S_{t-1}, then + k_t v_t^T, or the delta rule where `beta` is given.
    g [B, N, H] or [B, N, H, Dk] -> o [B, N, H, Dv], S [B, H, Dk, Dv]"""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    s = torch.zeros(*v.shape[::2], k.shape[-1], v.shape[-1], dtype=v.dtype) if state is None else state
    out = []
    for t in range(q.shape[1]):
        if g is not None:
            decay = g[:, t].exp()
            s = s * (decay.unsqueeze(-1) if decay.dim() == 3 else decay[..., None, None])
        value = v[:, t]
        if beta is not None:
            value = beta[:, t].unsqueeze(-1) * (value - torch.einsum("bhk,bhkv->bhv", k[:, t], s))
        s = s + torch.einsum("bhk,bhv->bhkv", k[:, t], value)
        out.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], s))
    return torch.stack(out, 1), s


def retention_decay(tokens: int, heads: int) -> Tensor:
    gamma = 1 - 2.0 ** (-5 - torch.arange(heads, dtype=torch.float64))
    return gamma.log().expand(1, tokens, heads)


def ssd(x, dt, a, b, c, d, *, state=None) -> tuple[Tensor, Tensor]:
    """Mamba2, token by token: h [B, H, S, P]."""
    repeat = x.shape[2] // b.shape[2]
    b, c = b.repeat_interleave(repeat, 2), c.repeat_interleave(repeat, 2)
    h = torch.zeros(x.shape[0], x.shape[2], b.shape[-1], x.shape[-1], dtype=x.dtype) if state is None else state
    out = []
    for t in range(x.shape[1]):
        h = h * (a * dt[:, t]).exp()[..., None, None]
        h = h + torch.einsum("bhs,bhp->bhsp", b[:, t], x[:, t] * dt[:, t].unsqueeze(-1))
        out.append(torch.einsum("bhs,bhsp->bhp", c[:, t], h) + d[:, None] * x[:, t])
    return torch.stack(out, 1), h
