"""What every attention layer offers, and layers by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from inspect import signature

import torch
from torch import Tensor, nn

State = Sequence[Tensor]  # what a causal layer remembers; empty at the beginning


class Attention(nn.Module):
    """A layer x `[B, N, dim]` -> `[B, N, dim]`, tokens in natural order."""

    def init_state(self, batch: int = 1) -> State:
        """The state before the first token. It takes its batch size from the first step."""
        return ()

    def step(self, x: Tensor, state: State = ()) -> tuple[Tensor, State]:
        """Causal layers: x `[B, N, dim]` continues the sequence of `state`. Returns the output and the new state."""
        raise NotImplementedError(f"[mhla.nn] {type(self).__name__}: only causal layers go step by step")


class CausalAttention(Attention):
    """A layer whose `forward` is one step from the beginning."""

    def forward(self, x: Tensor) -> Tensor:
        """x `[B, N, dim]` -> `[B, N, dim]`"""
        return self.step(x)[0]


_FACTORIES: dict[str, Callable[..., nn.Module]] = {}


def register(name: str) -> Callable[[Callable[..., nn.Module]], Callable[..., nn.Module]]:
    """Decorator: makes a class or function known to `make_attention` under `name`."""

    def keep(factory):
        _FACTORIES[name] = factory
        return factory

    return keep


def choose(what: str, name: str, known: Sequence[str]) -> str:
    """`name`, where it is one of `known`; otherwise an error that names the nearest."""
    if name in known:
        return name
    near = get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"[mhla.nn] {what}: expected one of {', '.join(known)}, got {name!r}{hint}")


def attention_names() -> list[str]:
    return sorted(_FACTORIES)


def make_attention(name: str, **options) -> nn.Module:
    """A layer by its name (`attention_names()`), for example
    `make_attention("gla", dim=1024, heads=4)`; `options` are the keywords of its class."""
    factory = _FACTORIES[choose("attention", name, attention_names())]
    parameters = signature(factory).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for option in options:
            choose(f"{name}: option", option, list(parameters))
    return factory(**options)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """`[B, N, C]` -> `[B, N, H, D]`"""
    return x.unflatten(-1, (heads, -1))


def wide(x: Tensor) -> Tensor:
    """In f32, or f64 where it is f64."""
    return x if x.dtype == torch.float64 else x.float()


def check_heads(layer: str, width: int, heads: int) -> None:
    if width <= 0 or heads <= 0 or width % heads:
        raise ValueError(f"[mhla.nn] {layer}: a width of {width} does not divide into {heads} heads")


def check_grid(layer: str, grid: Sequence[int], axes: int) -> tuple[int, ...]:
    if len(grid) != axes:
        raise ValueError(f"[mhla.nn] {layer}: grid: expected {axes} axes, got {tuple(grid)}")
    return tuple(grid)


def depthwise(channels: int, size: int) -> nn.Conv2d:
    """Depthwise on a token grid; only its parameters are used, by `torch.ops.mhla.grid_convolution`."""
    return nn.Conv2d(channels, channels, size, groups=channels)


def short_convolution(channels: int, size: int, bias: bool) -> nn.Conv1d:
    """Causal, depthwise; only its parameters are used, by `torch.ops.mhla.short_convolution`."""
    return nn.Conv1d(channels, channels, size, groups=channels, bias=bias)
