"""Turning q and k by tables that another model made."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x` `[B, N, H, D]`; channel j turns with channel j + D/2. `cos`, `sin` `[N, 1, D/2]`."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x` `[B, N, H, D]`; channel 2j turns with channel 2j + 1. `cos`, `sin` `[N, 1, D/2]`."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
