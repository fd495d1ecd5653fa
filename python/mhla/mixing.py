"""Mixing matrices of other layouts."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _library  # noqa: F401
from .layout import Layout


def resample(
    mixing: Tensor, layout_from: Layout, layout_to: Layout, *, causal: bool = False, keep_row_sums: bool = True,
    tokens_from: int | None = None, tokens_to: int | None = None,
) -> Tensor:  # fmt: skip
    """A mixing matrix `[M, M]` or `[H, M, M]` moved to another layout (another resolution, a longer
    context) by interpolation between block centres."""
    return torch.ops.mhla.resample_mixing(
        mixing, layout_from.words(tokens_from), layout_to.words(tokens_to), causal, keep_row_sums
    )
