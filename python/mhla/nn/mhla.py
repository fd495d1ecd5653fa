"""The MHLA attention layer, with every switch in which the paper and its code differ."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from difflib import get_close_matches

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import init as initial
from ..functional import attention
from ..layout import Grid, Layout


@dataclass(frozen=True)
class MHLAConfig:
    """What surrounds the operator in a layer."""

    init: str = "locality"  # locality, causal_locality, uniform, causal_uniform, authors:TRANSFORM, VALUE
    mask: str = "none"
    normalizer: str = "exact"
    feature_map: str = "relu_eps"
    scale: float | str = 1.0  # a number, or "dk" for Dk^-1/2
    eps: float | None = None
    clamp: tuple[float, float] | None = (0.0, 1.0)
    clamp_in_forward: bool = False  # else by mhla.constrain_ after each update
    renormalize_rows: bool = False
    mixing_per_head: bool = False
    freeze_mixing: bool = False  # the mixing matrix stays as it starts (ablation of Tab. 7a)
    rope: str = "none"  # none, after_phi, after_phi_num_only
    lepe: int = 0  # size of a depthwise convolution of v on the grid, added to the output
    lepe_identity: bool = False  # it starts as the identity
    inner_norm: bool = False  # LayerNorm on the input
    qk_norm: str = "none"  # none, full (RMS over all heads), head
    qk_norm_eps: float | None = None
    out_norm: str = "none"  # none, head: RMS over each head's output
    gate: str = "none"  # none, silu
    qkv_bias: bool = True
    out_bias: bool = True
    dropout: float = 0.0  # after the output projection


# spec 1.9: the four tasks as the authors' code has them
_AUTHORS = {
    "classification": MHLAConfig(
        init="authors:linear", normalizer="shared_position", inner_norm=True, qk_norm="full", lepe=5, qkv_bias=False
    ),
    "dit": MHLAConfig(
        init="authors:linear", normalizer="shared_position", inner_norm=True, lepe=3, lepe_identity=True, dropout=0.1
    ),
    "video": MHLAConfig(
        init="authors:linear", normalizer="none", clamp=None, rope="after_phi_num_only", qk_norm="full",
        qk_norm_eps=1e-6, out_norm="head",
    ),
    "language": MHLAConfig(
        init="causal_uniform", mask="causal", normalizer="none", feature_map="relu", scale="dk", clamp=(1e-5, 1.0),
        clamp_in_forward=True, rope="after_phi", out_norm="head", gate="silu", qkv_bias=False, out_bias=False,
    ),
}  # fmt: skip
# The paper: the operator alone, rows normalised, weights clipped after each update.
_PAPER = {
    "classification": MHLAConfig(),
    "dit": MHLAConfig(),
    "video": replace(_AUTHORS["video"], init="locality", normalizer="exact", clamp=(0.0, 1.0), out_norm="none"),
    "language": replace(_AUTHORS["language"], init="causal_locality", clamp=(0.0, 1.0), clamp_in_forward=False),
}
_PRESETS = {"paper": _PAPER, "authors": _AUTHORS}


_VALUES = {
    "mask": ("none", "causal", "block_causal"),
    "normalizer": ("exact", "shared_position", "none"),
    "feature_map": ("relu_eps", "relu", "elu1", "identity"),
    "rope": ("none", "after_phi", "after_phi_num_only"),
    "qk_norm": ("none", "full", "head"),
    "out_norm": ("none", "head"),
    "gate": ("none", "silu"),
}


def _lookup(kind: str, name: str, known) -> object:
    if name in known:
        return known[name]
    near = get_close_matches(name, list(known), 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"[mhla.nn.MHLA] {kind}: expected one of {', '.join(known)}, got {name!r}{hint}")


def make_config(preset: str = "paper", task: str = "classification", **switches) -> MHLAConfig:
    """A preset (`paper`, `authors`) for a task (`classification`, `dit`, `video`, `language`), with
    single switches changed."""
    config = _lookup("task", task, _lookup("preset", preset, _PRESETS))
    known = {field.name: None for field in fields(MHLAConfig)}
    for name in switches:
        _lookup("switch", name, known)
    config = replace(config, **switches)
    for name, values in _VALUES.items():
        _lookup(name, getattr(config, name), dict.fromkeys(values))
    if config.renormalize_rows and (config.clamp is None or config.clamp_in_forward):
        raise ValueError("[mhla.nn.MHLA] renormalize_rows: needs a clamp after each update (mhla.constrain_)")
    if config.lepe and (config.lepe < 0 or config.lepe % 2 == 0):
        raise ValueError(f"[mhla.nn.MHLA] lepe: expected an odd size, or 0 for none, got {config.lepe}")
    if config.clamp is not None and not config.clamp[0] <= config.clamp[1]:
        raise ValueError(f"[mhla.nn.MHLA] clamp: expected (lowest, highest) or None, got {config.clamp}")
    return config


_FEATURE_MAPS = {
    "relu_eps": lambda x: F.relu(x) + 1e-6,
    "relu": F.relu,
    "elu1": lambda x: F.elu(x) + 1,
    "identity": lambda x: x,
}


def _in_half(x: Tensor) -> bool:
    """Whether the operator would compute with f16, by its inputs or by autocast."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type) == torch.float16
    return x.dtype == torch.float16


class MHLA(nn.Module):
    """One attention layer: x `[B, N, dim]` -> `[B, N, dim]`, tokens in natural order.

    Args:
        dim: width of the input and output
        heads: channel heads
        layout: `Sequence` or `Grid`
        preset: `paper` or `authors`
        task: `classification`, `dit`, `video` or `language`
        dim_k, dim_v: total widths of q and k, and of v; `dim` by default (language: dim / 2 and dim)
        tokens: with `Sequence(block=...)`, the longest sequence: it sizes the mixing matrix
        switches: any field of `MHLAConfig`
    """

    mixing: nn.Parameter  # [M, M] or [H, M, M]

    def __init__(
        self,
        dim: int,
        heads: int,
        layout: Layout,
        *,
        preset: str = "paper",
        task: str = "classification",
        dim_k: int | None = None,
        dim_v: int | None = None,
        tokens: int | None = None,
        **switches,
    ):
        super().__init__()
        config = make_config(preset, task, **switches)
        self.config, self.layout, self.heads = config, layout, heads
        if dim < 1 or heads < 1:
            raise ValueError(f"[mhla.nn.MHLA] dim and heads: expected positive numbers, got {dim} and {heads}")
        self.dim_k = dim_k or (dim // 2 if task == "language" else dim)
        self.dim_v = dim_v or dim
        for name, width in (("dim_k", self.dim_k), ("dim_v", self.dim_v)):
            if width % heads:
                raise ValueError(f"[mhla.nn.MHLA] {name}: {width} is not a multiple of {heads} heads")
        dk, dv = self.dim_k // heads, self.dim_v // heads
        self.scale = dk**-0.5 if config.scale == "dk" else float(config.scale)

        self.norm = nn.LayerNorm(dim) if config.inner_norm else None
        self.qkv = nn.Linear(dim, 2 * self.dim_k + self.dim_v, bias=config.qkv_bias)
        norm_width = {"none": None, "full": self.dim_k, "head": dk}[config.qk_norm]
        self.q_norm = nn.RMSNorm(norm_width, eps=config.qk_norm_eps) if norm_width else None
        self.k_norm = nn.RMSNorm(norm_width, eps=config.qk_norm_eps) if norm_width else None
        mixing = initial.by_name(str(config.init), layout, tokens=tokens)
        if config.mixing_per_head:
            mixing = mixing.expand(heads, -1, -1).clone()
        self.mixing = nn.Parameter(mixing, requires_grad=not config.freeze_mixing)
        self.lepe = self._make_lepe() if config.lepe else None
        self.gate = nn.Linear(dim, self.dim_v, bias=config.qkv_bias) if config.gate == "silu" else None
        self.out_norm = nn.RMSNorm(dv, eps=1e-6) if config.out_norm == "head" else None
        self.out = nn.Linear(self.dim_v, dim, bias=config.out_bias)
        self.dropout = nn.Dropout(config.dropout)

    @property
    def mixing_clamp(self) -> tuple[float, float] | None:
        """The range that `mhla.constrain_` keeps; None: it leaves the matrix alone."""
        return None if self.config.clamp_in_forward or self.config.freeze_mixing else self.config.clamp

    @property
    def renormalize_rows(self) -> bool:
        return self.config.renormalize_rows

    def forward(self, x: Tensor) -> Tensor:
        """x `[B, N, dim]` -> `[B, N, dim]`"""
        return self._run(x, None)

    def init_state(self, batch: int = 1):
        """A state that has read nothing, for `step`. The layer's mask must be causal. It has `tokens()`,
        `bytes()`, `fork()`, `rewind(tokens)`, `save(path)`, and can be pickled."""
        if self.config.mask == "none" or isinstance(self.layout, Grid) or self.layout.block is None:
            raise ValueError("[mhla.nn.MHLA] init_state: needs a causal mask and a Sequence(block=...) layout")
        block, width = self.layout.block[0], self.dim_k // self.heads
        phi = "identity" if self.config.rope != "none" else self.config.feature_map
        like = self.qkv.weight
        names = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64"}
        text = (
            f"sequence={block} block={block} batch={batch} heads={self.heads} dk={width} dv={self.dim_v // self.heads} "
            f"mask={self.config.mask} normalizer={self.config.normalizer} feature_map={phi} scale={self.scale!r} "
            f"dtype={names[like.dtype]} device={like.device}"
        )
        if self.config.eps is not None:
            text += f" eps={self.config.eps!r}"
        if self._plain_denominator():
            text += " separate_denominator=true"
        if self.config.mixing_per_head:
            text += " mixing_per_head=true"
        return torch.classes.mhla.State(text, self._mixing().detach())

    @torch.no_grad()
    def step(self, x: Tensor, state):
        """Reads x `[B, T, dim]`, one token or several; returns y `[B, T, dim]` and the state, which has
        read them too. No gradients."""
        if state is None:
            raise TypeError("[mhla.nn.MHLA] step: state: expected what init_state returned, got None")
        return self._run(x, state), state

    def _run(self, x: Tensor, state) -> Tensor:
        if self.norm is not None:
            x = self.norm(x)
        q, k, v = self._project(x)
        o = self._attend(q, k, v, state)
        if self.out_norm is not None:
            o = self.out_norm(o)
        o = o.flatten(2)
        if self.gate is not None:
            o = o * F.silu(self.gate(x))
        return self.dropout(self.out(o))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).split([self.dim_k, self.dim_k, self.dim_v], -1)
        full = self.config.qk_norm == "full"
        if full:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in (q, k, v))
        if self.q_norm is not None and not full:
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v

    def _mixing(self) -> Tensor:
        if self.config.clamp is None or not self.config.clamp_in_forward:
            return self.mixing
        # straight through, as the authors' clamp of `.data` is
        return self.mixing + (self.mixing.clamp(*self.config.clamp) - self.mixing).detach()

    def _plain_denominator(self) -> bool:
        return self.config.rope == "after_phi_num_only" and self.config.normalizer != "none"

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, state) -> Tensor:
        config, den, feature_map = self.config, {}, self.config.feature_map
        if config.rope != "none":
            phi, feature_map = _FEATURE_MAPS[feature_map], "identity"
            q, k = phi(q), phi(k)
            if self._plain_denominator():
                den = dict(q_den=q, k_den=k)
            start = None if state is None else torch.tensor(state.tokens())
            q, k = self._turned(q, start), self._turned(k, start)
        if state is not None:
            read = torch.ops.mhla.step if q.shape[1] == 1 else torch.ops.mhla.prefill
            return read(state, q, k, v, **den)
        options = dict(
            layout=self.layout, mask=config.mask, normalizer=config.normalizer, feature_map=feature_map,
            scale=self.scale, eps=config.eps,
        )  # fmt: skip
        local = None if self.lepe is None else (self.lepe.weight, self.lepe.bias)
        if config.normalizer != "shared_position" or not _in_half(v):
            return attention(q, k, v, self._mixing(), local=local, **options, **den)
        # The authors' denominator may be almost nothing: results beyond f16's range saturate.
        with torch.autocast(v.device.type, enabled=False):
            den = {key: value.float() for key, value in den.items()}
            o = attention(q.float(), k.float(), v.float(), self._mixing().float(), **options, **den)
            o = o.clamp(-65504, 65504).half()
        return o if local is None else torch.ops.mhla.grid_convolution(v, self.layout.size, *local, o)

    def _turned(self, x: Tensor, start: Tensor | None) -> Tensor:
        if isinstance(self.layout, Grid):
            return torch.ops.mhla.rotary_axes(x, self.layout.size)
        return torch.ops.mhla.rotary(x, offset=start)

    def _make_lepe(self) -> nn.Module:
        if not isinstance(self.layout, Grid):
            raise ValueError("[mhla.nn.MHLA] lepe: needs a Grid layout")
        size, axes = self.config.lepe, len(self.layout.size)
        conv = (nn.Conv2d if axes == 2 else nn.Conv3d)(
            self.dim_v, self.dim_v, size, padding=size // 2, groups=self.dim_v
        )
        if self.config.lepe_identity:
            nn.init.zeros_(conv.weight)
            nn.init.zeros_(conv.bias)
            with torch.no_grad():
                conv.weight[(..., *([size // 2] * axes))] = 1.0
        return conv

    def extra_repr(self) -> str:
        return f"heads={self.heads}, layout={self.layout}"
