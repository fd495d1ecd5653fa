"""How a mixing matrix starts. Each returns float32 `[M, M]`, row = query block."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _library  # noqa: F401
from .layout import Layout, check


def by_name(how: str, layout: Layout, *, tokens: int | None = None) -> Tensor:
    """`locality`, `causal_locality`, `uniform`, `causal_uniform`, `authors:TRANSFORM`, or a number
    for a constant matrix. `tokens` is the length of a `Sequence(block=...)`."""
    check(layout)
    return torch.ops.mhla.initial_mixing(layout.words(tokens), how)


def locality(layout: Layout, *, tokens: int | None = None) -> Tensor:
    """The paper: 1 - distance / largest distance of the row; rows sum to one.
    `tokens` is the length of a `Sequence(block=...)`."""
    return by_name("locality", layout, tokens=tokens)


def causal_locality(layout: Layout, *, tokens: int | None = None) -> Tensor:
    """`locality` below and on the diagonal, rows summing to one; zero above it."""
    return by_name("causal_locality", layout, tokens=tokens)


def uniform(layout: Layout, *, tokens: int | None = None) -> Tensor:
    """1 / M: plain linear attention."""
    return by_name("uniform", layout, tokens=tokens)


def causal_uniform(layout: Layout, *, tokens: int | None = None) -> Tensor:
    """1 / (i + 1) for key blocks b <= i, the authors' start for language."""
    return by_name("causal_uniform", layout, tokens=tokens)


def authors(layout: Layout, transform: str = "linear", *, tokens: int | None = None) -> Tensor:
    """The authors' code: a transform of distance over the global maximum; columns sum to one
    (`gaussian`: not normalised). Transforms: linear, cos, exp, gaussian, local."""
    return by_name(f"authors:{transform}", layout, tokens=tokens)
