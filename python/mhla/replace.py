"""Swaps the softmax attention of existing models for MHLA, keeping their weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection

from torch import nn

from .layout import Layout
from .nn.swapped import SwappedAttention, projections_of


def _looks_like_attention(module: nn.Module) -> bool:
    return "attention" in type(module).__name__.lower() or isinstance(module, nn.MultiheadAttention)


# How transformers and others name attention over another sequence.
_CROSS = ("cross", "encoder_attn", "encdec")


def _refusal(name: str, module: nn.Module) -> str | None:
    """Why a module that looks like attention stays as it is; None if it can be swapped."""
    named = any(word in name.rpartition(".")[2].lower() for word in _CROSS)
    if named or getattr(module, "is_cross_attention", False):
        return "cross-attention has another layout for its keys"
    if projections_of(module) is None:
        return "no q, k, v and output projections (or a fused qkv) were found in it"
    return None


def replace_attention(
    model: nn.Module,
    *,
    layout: Layout,
    keep: Collection[int] = (),
    only: Callable[[str, nn.Module], bool] | None = None,
    causal: bool | None = None,
    tokens: int | None = None,
    **switches,
) -> nn.Module:
    """Swaps every softmax self-attention in `model` for MHLA, in place; returns `model`.

    Works on timm vision transformers, diffusers transformers, transformers decoders and any module
    with q, k, v and output projections. Projections, norms, rotary embeddings and parameter names
    stay; each layer gains `mixing` `[M, M]`. Tokens before the grid (a class token) become one more
    block. What looks like attention and cannot be swapped is named in a warning and in
    `model.mhla_skipped`; nothing swappable is an error.

    Args:
        layout: `Grid` or `Sequence` of the tokens that the layers see
        keep: numbers of the attention layers that stay softmax, counted from 0 in the model's order: a hybrid
        only: called with the name and the module of each candidate; False leaves it alone
        causal: token by token; found from `is_causal` or the `transformers` decoder by default
        tokens: with `Sequence(block=...)`, the longest sequence
        switches: `init`, `normalizer`, `feature_map`, `scale`, `eps`, `clamp`, `renormalize_rows`
    """
    if projections_of(model) is not None:
        raise ValueError("[mhla.replace_attention] give the model that holds the attention, not the attention itself")
    swapped, skipped, kept = {}, {}, []
    for name, module in list(model.named_modules()):
        if isinstance(module, SwappedAttention) or not name:
            continue
        if any(name.startswith(done + ".") for done in [*swapped, *kept]):
            continue
        if projections_of(module) is None and not _looks_like_attention(module):
            continue
        if only is not None and not only(name, module):
            continue
        reason = _refusal(name, module)
        if reason is not None:
            skipped[name] = f"{type(module).__name__}: {reason}"
            continue
        if len(swapped) + len(kept) in keep:
            kept.append(name)
            continue
        swapped[name] = SwappedAttention(module, layout, causal=causal, tokens=tokens, **switches)
        swapped[name].train(module.training)
    # A container of something that was swapped is no candidate of its own.
    skipped = {n: why for n, why in skipped.items() if not any(done.startswith(n + ".") for done in swapped)}
    wrong = sorted(set(keep) - set(range(len(swapped) + len(kept))))
    if wrong:
        raise ValueError(f"[mhla.replace_attention] keep: there is no attention layer {wrong[0]} of {len(swapped) + len(kept)}")
    if not swapped:
        found = "".join(f"\n  {name}: {why}" for name, why in skipped.items())
        raise ValueError(f"[mhla.replace_attention] found no attention to swap in {type(model).__name__}{found}")
    for name, layer in swapped.items():  # all of them, or none
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, layer)
    if skipped:
        listed = "".join(f"\n  {name}: {why}" for name, why in skipped.items())
        warnings.warn(f"mhla: left {len(skipped)} modules as they were:{listed}", stacklevel=2)
    model.mhla_skipped = skipped
    if getattr(getattr(model, "config", None), "use_cache", None):
        model.config.use_cache = False  # a softmax cache holds keys; MHLA's state is another
    return model
