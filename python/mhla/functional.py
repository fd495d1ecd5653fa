"""The operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from operator import index
from typing import TypeVar

import torch
from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling

from . import _library
from .layout import Grid, Layout, Sequence, check

_call = _library.call or (lambda arguments, keywords: None)
_forward = torch.ops.mhla.forward.default  # without the search for an overload at every call
_NARROW = (torch.bfloat16, torch.float16)
_Function = TypeVar("_Function", bound=Callable[..., Tensor])


def _lengths(cu_seqlens: Tensor | Iterable[int], layout: Layout, tokens: int) -> list[int]:
    if isinstance(layout, Grid):
        raise ValueError("[mhla.attention] cu_seqlens: needs a Sequence layout, got a Grid")
    given = cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor) else list(cu_seqlens)
    try:
        ends = [index(e) for e in given]
    except TypeError:
        raise ValueError(f"[mhla.attention] cu_seqlens: expected a row of whole numbers, got {given}") from None
    if len(ends) < 2 or ends[0] != 0 or ends[-1] != tokens:
        raise ValueError(f"[mhla.attention] cu_seqlens: expected 0, ..., {tokens}, got {ends}")
    return [b - a for a, b in zip(ends, ends[1:])]


def _refuse_others(**tensors) -> None:
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"[mhla.attention] {name}: expected a tensor, got {type(value).__name__}")


def _arguments(
    q, k, v, mixing, layout, layout_k, mask, normalizer, feature_map, scale, eps, q_den, k_den, cu_seqlens,
    grid_as_numbers=False, narrow_mixing=False,
):  # fmt: skip
    _refuse_others(q=q, k=k, v=v, mixing=mixing)
    check(layout)
    if not narrow_mixing and mixing.dtype in _NARROW:
        mixing = mixing.float()
    sizes = layout.sizes if grid_as_numbers else ()
    options = layout._options(
        mask=mask, normalizer=normalizer, feature_map=feature_map, scale=scale, eps=eps, without_grid=grid_as_numbers
    )  # fmt: skip
    if cu_seqlens is not None:
        sizes = _lengths(cu_seqlens, layout, q.shape[1])
    sizes_k = ()
    if layout_k is not None:
        sizes_k = [k.shape[1]] if isinstance(layout_k, Sequence) else layout_k.sizes
        options += f" {layout_k.cut_words('_k')}"
    return q, k, v, mixing, q_den, k_den, sizes, sizes_k, options


def _short_where_usual(function: _Function) -> _Function:
    """The usual call goes straight to a function of C; what is unusual or wrong, to this function.

    NOTE: after a kernel of a millisecond every line of code is out of the caches, and to fill in the defaults
    of eleven keywords takes longer than the function of C.
    """

    @wraps(function)
    def call(*arguments, **keywords):
        if not is_dynamo_compiling():  # a compiler sees the operator, and no function of C
            o = _call(arguments, keywords)
            if o is not None:
                return o
        return function(*arguments, **keywords)

    return call


@_short_where_usual
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mixing: Tensor,
    *,
    layout: Layout,
    layout_k: Layout | None = None,
    mask: str = "none",
    normalizer: str = "exact",
    feature_map: str = "relu_eps",
    scale: float = 1.0,
    eps: float | None = None,
    q_den: Tensor | None = None,
    k_den: Tensor | None = None,
    cu_seqlens: Tensor | Iterable[int] | None = None,
    local: tuple[Tensor, Tensor | None] | None = None,
) -> Tensor:
    """Multi-Head Linear Attention: `o_s = sum_t A_st v_t / sum_t A_st` with
    `A_st = mixing[block(s), block(t)] * scale * (phi(q_s) . phi(k_t))`.

    Tokens are in natural order (raster; frame, row, column for video); the layout does the blocking.
    Any strides with a contiguous last dimension are read in place, so slices of a fused
    `[B, N, 3, H, D]` projection cost no copy. Differentiable in q, k, v, mixing, q_den and k_den.

    Args:
        q: `[B, Nq, H, Dk]`, float32, bfloat16, float16 or (slow) float64
        k: `[B, Nk, H, Dk]`
        v: `[B, Nk, H, Dv]`
        mixing: `[Mq, Mk]`, or `[H, Mq, Mk]` for one matrix per head; row = query block
        layout: `Sequence` or `Grid`
        layout_k: the keys' layout where it differs (cross-attention)
        mask: `none`, `causal` or `block_causal`
        normalizer: `exact` (the paper), `shared_position` (the authors' code) or `none`
        feature_map: `relu_eps`, `relu`, `elu1` or `identity`
        scale: multiplies every score
        eps: added to the denominator; 0 for `exact` and 1e-6 for `shared_position` by default
        q_den, k_den: q and k of the denominator alone (rotary numerator, plain denominator)
        cu_seqlens: `0, ..., N`: packed sequences in a batch of one. A CUDA tensor costs a
            synchronisation; a list does not.
        local: weight `[H * Dv, 1, k, k]` (or `k, k, k`) and bias of a depthwise convolution of v on the
            layout's grid that is added to the result; in the same kernel where there is one (3 x 3 on
            256 tokens in bf16 or f16 on Hopper) and no gradient is recorded

    Returns:
        `[B, Nq, H, Dv]`
    """
    # A graph in which the grid is numbers serves all resolutions.
    numbers = local is not None or is_compiling()
    arguments = _arguments(
        q, k, v, mixing, layout, layout_k, mask, normalizer, feature_map, scale, eps, q_den, k_den, cu_seqlens,
        numbers, local is not None,  # forward_and_local widens the matrix where no kernel reads 16 bits
    )  # fmt: skip
    if local is None:
        return _forward(*arguments)
    if not isinstance(layout, Grid) or layout_k is not None:
        raise ValueError("[mhla.attention] local: needs a Grid layout of both q and k")
    *tensors, sizes, _, options = arguments
    return torch.ops.mhla.forward_and_local(*tensors, sizes, options, *local)


def explain(q: Tensor, k: Tensor, v: Tensor, mixing: Tensor, *, layout: Layout, **options) -> str:
    """Which implementation serves `attention` with these arguments, and why; its cost and workspace."""
    names = dict(
        layout_k=None, mask="none", normalizer="exact", feature_map="relu_eps", scale=1.0, eps=None,
        q_den=None, k_den=None, cu_seqlens=None,
    )  # fmt: skip
    unknown = set(options) - set(names)
    if unknown:
        raise TypeError(f"[mhla.explain] unknown argument {sorted(unknown)[0]!r}")
    q, k, v = (_as_autocast(t) for t in (q, k, v))
    return torch.ops.mhla.explain(*_arguments(q, k, v, mixing, layout, **{**names, **options}))


def _as_autocast(tensor: Tensor) -> Tensor:
    """In the type that a call in this region would see."""
    device = tensor.device.type
    if not torch.is_autocast_enabled(device) or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))
