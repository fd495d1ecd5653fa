"""An attention module of another package with MHLA in the place of softmax."""

from __future__ import annotations

import inspect

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import init as initial
from ..functional import attention
from ..layout import Layout
from . import rotary
from .attention import choose
from .mhla import _FEATURE_MAPS, _VALUES

# Names of q, k, v and output projections: transformers, diffusers, Wan and plain modules.
_SEPARATE = [
    ("q_proj", "k_proj", "v_proj", "o_proj"),
    ("q_proj", "k_proj", "v_proj", "out_proj"),
    ("to_q", "to_k", "to_v", "to_out"),
    ("q", "k", "v", "o"),
]
_FUSED = [("qkv", "proj"), ("to_qkv", "to_out")]
_HEADS = ("num_heads", "heads", "num_attention_heads", "n_heads")
# Arguments of other packages' layers: rotary tables, and what changes no result here.
_USED = ("position_embeddings", "rotary_emb")
_WITHOUT_EFFECT = ("position_ids", "cache_position", "use_cache", "output_attentions")
_NORMS = [("q_norm", "k_norm"), ("norm_q", "norm_k")]


def projections_of(module: nn.Module) -> tuple[str, ...] | None:
    """The names of its projections: (qkv, out) or (q, k, v, out); None if it has none."""
    for names in _FUSED + _SEPARATE:
        parts = [getattr(module, name, None) for name in names]
        if all(isinstance(part, nn.Linear) for part in parts[:-1]) and isinstance(
            parts[-1], (nn.Linear, nn.Sequential, nn.ModuleList)
        ):
            return names
    return None


def _heads_of(module: nn.Module) -> int:
    for owner in (module, getattr(module, "config", None)):
        for name in _HEADS:
            value = getattr(owner, name, None)
            if isinstance(value, int):
                return value
    raise ValueError(
        f"[mhla.replace_attention] {type(module).__name__}: the number of heads was not found "
        f"(looked for {', '.join(_HEADS)})"
    )


def _is_transformers(module: nn.Module) -> bool:
    return type(module).__module__.startswith("transformers.")


class SwappedAttention(nn.Module):
    """Keeps the projections and norms of `module` under their names and adds `mixing` `[M, M]`.
    x `[B, P + N, C]` -> the same shape; P tokens before the grid are one more block."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        *,
        causal: bool | None = None,
        tokens: int | None = None,
        init: str | None = None,
        normalizer: str = "exact",
        feature_map: str = "relu_eps",
        scale: float = 1.0,
        eps: float | None = None,
        clamp: tuple[float, float] | None = (0.0, 1.0),
        renormalize_rows: bool = False,
    ):
        super().__init__()
        choose("normalizer", normalizer, _VALUES["normalizer"])
        choose("feature_map", feature_map, _VALUES["feature_map"])
        self.names = projections_of(module)
        for name in self.names:
            setattr(self, name, getattr(module, name))
        self.norm_names = next(
            (n for n in _NORMS if all(isinstance(getattr(module, m, None), nn.Module) for m in n)), None
        )
        for name in self.norm_names or ():
            setattr(self, name, getattr(module, name))
        self.argument_names = list(inspect.signature(module.forward).parameters)[1:]
        self.after = getattr(module, "proj_drop", None)
        self.heads = _heads_of(module)
        self.layout, self.normalizer, self.feature_map = layout, normalizer, feature_map
        self.scale, self.eps = scale, eps
        if causal is None:
            causal = bool(getattr(module, "is_causal", False))
        self.mask = "causal" if causal else "none"
        self.returns_pair = _is_transformers(module)
        self.mixing_clamp, self.renormalize_rows = clamp, renormalize_rows
        how = init or ("causal_locality" if causal else "locality")
        like = next(module.parameters())
        mixing = initial.by_name(how, layout, tokens=tokens).to(like.device)
        self.mixing = nn.Parameter(mixing)
        # Weights between the tokens before the grid and the blocks of the grid.
        even = 1.0 / (mixing.shape[0] + 1)
        self.prefix_mixing = nn.Parameter(torch.full((2, mixing.shape[0]), even, device=like.device))
        block = torch.ops.mhla.block_index(layout.words()) if layout.sizes else torch.empty(0, dtype=torch.long)
        self.register_buffer("block", block.to(like.device), persistent=False)  # of every token of a grid

    def forward(self, hidden_states: Tensor, *arguments, **options):
        """hidden_states `[B, P + N, C]`; further arguments as the swapped module took them. Rotary tables
        (`position_embeddings`, `rotary_emb`) are used; masks beyond `causal`, contexts, caches and
        anything unknown are refused."""
        options = {**dict(zip(self.argument_names, arguments)), **options}
        self._refuse(options, hidden_states.shape[1])
        q, k, v = self._project(hidden_states)
        tables = options.get("position_embeddings"), options.get("rotary_emb")
        o = self._attend(q, k, v, *tables).flatten(2)
        o = self._out(o)
        return (o, None) if self.returns_pair else o

    def _refuse(self, options: dict, tokens: int) -> None:
        for name, value in options.items():
            if value is None or value is False or name in _USED or name in _WITHOUT_EFFECT:
                continue
            if name == "is_causal" and self.mask == "causal":
                continue
            if name in ("attention_mask", "attn_mask") and self._is_causal_mask(value, tokens):
                continue
            hint = "; pass use_cache=False" if name == "past_key_values" else ""
            raise ValueError(
                f"[mhla.replace_attention] {name}: the MHLA layer cannot honour it (no mask, causal masks and rotary "
                f"tables are supported){hint}"
            )

    def _is_causal_mask(self, mask: Tensor, tokens: int) -> bool:
        if self.mask != "causal" or not isinstance(mask, Tensor) or mask.shape[-2:] != (tokens, tokens):
            return False
        seen = mask if mask.dtype == torch.bool else mask == 0
        return torch.equal(seen, torch.ones_like(seen).tril())

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if len(self.names) == 2:
            q, k, v = getattr(self, self.names[0])(x).chunk(3, -1)
        else:
            q, k, v = (getattr(self, name)(x) for name in self.names[:3])
        width = q.shape[-1] // self.heads
        per_head = self.norm_names is None or self._norm_width(0) == width
        if not per_head:
            q, k = self._normed(q, k)
        q = q.unflatten(-1, (self.heads, -1))
        k, v = (t.unflatten(-1, (k.shape[-1] // width, -1)) for t in (k, v))
        if per_head:
            q, k = self._normed(q, k)
        groups = self.heads // k.shape[2]  # grouped-query attention: heads share keys
        if groups > 1:
            k, v = (t.repeat_interleave(groups, 2) for t in (k, v))
        return q, k, v

    def _norm_width(self, which: int) -> int | None:
        weight = getattr(getattr(self, self.norm_names[which]), "weight", None)
        return None if weight is None else weight.shape[-1]

    def _normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.norm_names is None:
            return q, k
        return getattr(self, self.norm_names[0])(q), getattr(self, self.norm_names[1])(k)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, half_tables, pair_tables) -> Tensor:
        options = dict(
            layout=self.layout, mask=self.mask, normalizer=self.normalizer, feature_map=self.feature_map,
            scale=self.scale, eps=self.eps,
        )  # fmt: skip
        prefix = 0 if not self.layout.sizes else q.shape[1] - self.layout.tokens
        if half_tables is not None or pair_tables is not None:
            if prefix > 0:
                raise ValueError("[mhla.replace_attention] rotary tables and tokens before the grid do not go together")
            phi = _FEATURE_MAPS[self.feature_map]
            q, k = phi(q), phi(k)
            options["feature_map"] = "identity"
            if self.normalizer != "none":
                options.update(q_den=q, k_den=k)
            q, k = (self._turned(t, half_tables, pair_tables) for t in (q, k))
        if prefix > 0:
            return self._attend_with_prefix(q, k, v, prefix)
        return attention(q, k, v, self.mixing, **options)

    @staticmethod
    def _turned(x: Tensor, half_tables, pair_tables) -> Tensor:
        if half_tables is not None:  # [B, N, D], both halves alike
            cos, sin = (t[..., : t.shape[-1] // 2].unsqueeze(2).to(x) for t in half_tables)
            return rotary.rotate_halves(x, cos, sin)
        cos, sin = (t[..., 0::2].to(x) for t in pair_tables)  # [1, N, 1, D], each angle twice
        return rotary.rotate_pairs(x, cos, sin)

    def _attend_with_prefix(self, q: Tensor, k: Tensor, v: Tensor, prefix: int) -> Tensor:
        """The P first tokens are one more block: they read and are read with weights of their own.
        A column of ones in v carries the denominator through the operator."""
        if self.normalizer == "shared_position" or self.mask != "none":
            raise ValueError(
                "[mhla.replace_attention] tokens before the grid need normalizer exact or none and no mask, "
                f"got {self.normalizer} and {self.mask}"
            )
        phi = _FEATURE_MAPS[self.feature_map]
        q, k = phi(q), phi(k)
        v = F.pad(v, (0, 1), value=1.0)
        (qp, qn), (kp, kn), (vp, vn) = ((t[:, :prefix], t[:, prefix:]) for t in (q, k, v))
        inside = attention(
            qn, kn, vn, self.mixing, layout=self.layout, normalizer="none", feature_map="identity", scale=self.scale
        )
        reads, is_read = self.prefix_mixing[:, self.block].to(q).unsqueeze(-1).unsqueeze(-1).unbind(0)  # [N, 1, 1]
        even = 1.0 / (self.mixing.shape[0] + 1)
        own = torch.einsum("bphd,bphe->bhde", kp, vp) * self.scale
        rest = torch.einsum("bnhd,bnhe->bhde", kn * reads, vn) * self.scale
        o = torch.cat([
            torch.einsum("bphd,bhde->bphe", qp, own * even + rest),
            inside + is_read * torch.einsum("bnhd,bhde->bnhe", qn, own),
        ], 1)  # fmt: skip
        numerator, denominator = o[..., :-1], o[..., -1:]
        return numerator if self.normalizer == "none" else numerator / (denominator + (self.eps or 0.0))

    def _out(self, o: Tensor) -> Tensor:
        out = getattr(self, self.names[-1])
        for layer in out if isinstance(out, nn.ModuleList) else [out]:
            o = layer(o)
        return o if self.after is None else self.after(o)
