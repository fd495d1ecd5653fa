"""How tokens are cut into blocks."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from operator import index
from typing import Union

_Axes = tuple[int, ...]


def _axes(value: int | tuple[int, ...] | list[int] | None, name: str) -> _Axes | None:
    if value is None:
        return None
    try:
        axes = tuple(index(v) for v in value) if hasattr(value, "__iter__") else (index(value),)
    except TypeError:
        raise ValueError(f"[mhla.layout] {name}: expected whole numbers, got {value!r}") from None
    if not axes or any(v < 1 for v in axes):
        raise ValueError(f"[mhla.layout] {name}: expected positive numbers, got {value!r}")
    return axes


def _words(axes: _Axes) -> str:
    return "x".join(str(v) for v in axes)


class _Cut:
    """What Sequence and Grid share: exactly one of `block` and `blocks` is given."""

    block: _Axes | None
    blocks: _Axes | None

    def _set_cut(self, block, blocks, axes: int) -> None:
        for name, value in (("block", _axes(block, "block")), ("blocks", _axes(blocks, "blocks"))):
            if value is not None and len(value) != axes:
                raise ValueError(
                    f"[mhla.layout] {name}: expected {axes} numbers, one per axis, got {value}"
                )
            object.__setattr__(self, name, value)
        if (self.block is None) == (self.blocks is None):
            raise ValueError(
                "[mhla.layout] give either block (tokens per block) or blocks (number of blocks), "
                f"got {'neither' if self.block is None else 'both'}"
            )
        # NOTE: not a field, so it counts neither for equality nor for the hash.
        object.__setattr__(self, "_cut", f"block={_words(self.block)}" if self.block else f"blocks={_words(self.blocks)}")
        # What a call says of it.
        object.__setattr__(self, "_text", self.words() if axes > 1 else self._cut)

    def cut_words(self, suffix: str = "") -> str:
        """`block=8x8` or `blocks=4x4`, as the library reads it."""
        return self._cut.replace("=", suffix + "=", 1) if suffix else self._cut

    def _options(
        self, *, mask="none", normalizer="exact", feature_map="relu_eps", scale=1.0, eps=None, without_grid=False
    ) -> str:
        """What a call says besides its tensors. src/python/call.cpp asks for it with the words it was given."""
        cut = self._cut if without_grid else self._text
        text = f"{cut} mask={mask} normalizer={normalizer} feature_map={feature_map}"
        if scale != 1.0:
            text += f" scale={float(scale)!r}"
        if eps is not None:
            text += f" eps={float(eps)!r}"
        return text


@dataclass(frozen=True, init=False)
class Sequence(_Cut):
    """A 1-D layout for any number of tokens: `Sequence(block=64)` or `Sequence(blocks=32)`."""

    block: _Axes | None
    blocks: _Axes | None

    def __init__(self, *, block: int | None = None, blocks: int | None = None):
        self._set_cut(block, blocks, 1)

    @property
    def sizes(self) -> list[int]:
        return []  # as long as the queries are

    def words(self, tokens: int | None = None) -> str:
        """The layout of `tokens` tokens as text."""
        if tokens is None:
            if self.blocks is None:
                raise ValueError("[mhla.layout] a Sequence(block=...) needs tokens=N here")
            tokens = self.blocks[0]
        return f"sequence={tokens} {self.cut_words()}"

    def count(self, tokens: int | None = None) -> int:
        """Number of blocks, which is the size of the mixing matrix."""
        if self.blocks is not None:
            return self.blocks[0]
        if tokens is None:
            raise ValueError("[mhla.layout] a Sequence(block=...) needs tokens=N here")
        return -(-tokens // self.block[0])


@dataclass(frozen=True, init=False)
class Grid(_Cut):
    """A grid of tokens in raster order: `Grid((32, 32), block=(8, 8))`,
    `Grid((21, 30, 50), blocks=(3, 5, 10))`. Blocks at the edge may be smaller."""

    size: _Axes
    block: _Axes | None
    blocks: _Axes | None

    def __init__(self, size, *, block=None, blocks=None):
        object.__setattr__(self, "size", _axes(size, "size"))
        if not 2 <= len(self.size) <= 3:
            raise ValueError(f"[mhla.layout] size: expected 2 or 3 axes, got {self.size}")
        self._set_cut(block, blocks, len(self.size))

    @property
    def sizes(self) -> list[int]:
        return list(self.size)

    @property
    def tokens(self) -> int:
        return prod(self.size)

    @property
    def block_counts(self) -> _Axes:
        """Blocks per axis."""
        if self.blocks is not None:
            return tuple(min(n, g) for n, g in zip(self.blocks, self.size))
        return tuple(-(-g // b) for g, b in zip(self.size, self.block))

    def words(self, tokens: int | None = None) -> str:
        if tokens is not None and tokens != self.tokens:
            raise ValueError(f"[mhla.layout] the grid {self.size} has {self.tokens} tokens, not {tokens}")
        return f"grid={_words(self.size)} {self.cut_words()}"

    def count(self, tokens: int | None = None) -> int:
        return prod(self.block_counts)

    def resized(self, size) -> Grid:
        """The same cut on another grid: another resolution."""
        return Grid(size, block=self.block, blocks=self.blocks)


Layout = Union[Sequence, Grid]


def check(layout: object) -> None:
    """A `TypeError` unless it is a layout."""
    if not isinstance(layout, (Sequence, Grid)):
        raise TypeError(f"[mhla.layout] expected mhla.Sequence(...) or mhla.Grid(...), got {layout!r}")
