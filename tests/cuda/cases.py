"""What is tested: block layouts and problems in Python, independent of the library's own."""

import dataclasses
import functools
import itertools
import math

import torch

import libmhla


@dataclasses.dataclass(frozen=True)
class Layout:
    """sizes: one grid per packed sequence. Exactly one of block and blocks, as in mhla::Cut."""

    sizes: tuple
    block: tuple = ()
    blocks: tuple = ()

    def text(self, suffix=""):
        kind = "sequence" if len(self.sizes[0]) == 1 else "grid"
        sizes = "+".join("x".join(map(str, size)) for size in self.sizes)
        word, cut = ("block", self.block) if self.block else ("blocks", self.blocks)
        return f"{kind}{suffix}={sizes} {word}{suffix}={'x'.join(map(str, cut))}"

    @property
    def tokens(self):
        return sum(math.prod(size) for size in self.sizes)

    def _edges(self, axis, length):
        if self.block:
            return [*range(0, length, self.block[axis]), length]
        count = self.blocks[axis]
        return [i * length // count for i in range(count + 1)]

    @functools.cached_property
    def boxes(self):
        """(sequence, index in the sequence, first token, edges of the box per axis, grid)."""
        boxes, first = [], 0
        for sequence, size in enumerate(self.sizes):
            axes = [list(itertools.pairwise(self._edges(a, n))) for a, n in enumerate(size)]
            for index, box in enumerate(itertools.product(*axes)):
                boxes.append((sequence, index, first, box, size))
            first += math.prod(size)
        return boxes

    @functools.cached_property
    def extent(self):
        """Largest block per axis: the slots of a table row."""
        return tuple(
            max(box[axis][1] - box[axis][0] for _, _, _, box, _ in self.boxes)
            for axis in range(len(self.sizes[0])))

    @property
    def mixing_size(self):
        return 1 + max(index for _, index, _, _, _ in self.boxes)

    @functools.cached_property
    def table(self):
        """[blocks, slots] token numbers, -1 where a ragged block has no such coordinates."""
        slots = list(itertools.product(*map(range, self.extent)))
        rows = torch.full((len(self.boxes), len(slots)), -1, dtype=torch.int64)
        coordinates = torch.tensor(slots)  # [slots, axes]
        for row, (_, _, first, box, size) in enumerate(self.boxes):
            low = torch.tensor([edge[0] for edge in box])
            high = torch.tensor([edge[1] for edge in box])
            place = coordinates + low
            inside = (place < high).all(dim=1)
            number = torch.zeros(len(slots), dtype=torch.int64)
            for axis, length in enumerate(size):
                number = number * length + place[:, axis]
            rows[row, inside] = number[inside] + first
        return rows

    @functools.cached_property
    def sequence(self):
        return torch.tensor([box[0] for box in self.boxes])  # [blocks]

    @functools.cached_property
    def index(self):
        return torch.tensor([box[1] for box in self.boxes])  # [blocks]

    @functools.cached_property
    def places(self):
        """Per token: block number and slot."""
        block = torch.empty(self.tokens, dtype=torch.int64)
        slot = torch.empty(self.tokens, dtype=torch.int64)
        where = (self.table >= 0).nonzero()
        numbers = self.table[where[:, 0], where[:, 1]]
        block[numbers], slot[numbers] = where[:, 0], where[:, 1]
        return block, slot


def sequence(tokens, block=0, blocks=0):
    lengths = tokens if isinstance(tokens, tuple) else (tokens,)
    sizes = tuple((length,) for length in lengths)
    return Layout(sizes, block=(block,) if block else (), blocks=(blocks,) if blocks else ())


def grid(size, block=(), blocks=()):
    return Layout((tuple(size),), tuple(block), tuple(blocks))


@dataclasses.dataclass(frozen=True)
class Case:
    layout: Layout
    layout_k: Layout | None = None
    batch: int = 2
    heads: int = 2
    dk: int = 64
    dv: int = 0  # 0: as dk
    mask: str = "none"
    normalizer: str = "exact"
    feature_map: str = "relu_eps"
    scale: float = 1.0
    eps: float | None = None
    separate: bool = False
    per_head: bool = False
    dtype: torch.dtype = torch.bfloat16
    strides: str = "contiguous"  # fused, heads_first, misaligned

    @property
    def width(self):
        return self.dv or self.dk

    @property
    def keys(self):
        return self.layout_k or self.layout

    @property
    def denominator_eps(self):
        if self.eps is not None:
            return self.eps
        return 1e-6 if self.normalizer == "shared_position" else 0.0

    def text(self, device):
        words = [self.layout.text()]
        if self.layout_k:
            words.append(self.layout_k.text("_k"))
        words += [
            f"batch={self.batch}", f"heads={self.heads}", f"dk={self.dk}", f"dv={self.width}",
            f"mask={self.mask}", f"normalizer={self.normalizer}", f"feature_map={self.feature_map}",
            f"dtype={libmhla.DTYPE_NAMES[self.dtype]}", f"device={device}",
        ]
        if self.scale != 1.0:
            words.append(f"scale={self.scale!r}")
        if self.eps is not None:
            words.append(f"eps={self.eps!r}")
        if self.separate:
            words.append("separate_denominator=true")
        if self.per_head:
            words.append("mixing_per_head=true")
        return " ".join(words)

    def name(self):
        """Short and unique: the words that differ from the defaults."""
        words = [self.layout.text().replace(" ", "-").replace("=", "")]
        if self.layout_k:
            words.append("keys-" + self.layout_k.text().replace(" ", "-").replace("=", ""))
        words.append(f"b{self.batch}h{self.heads}d{self.dk}" + (f"-{self.dv}" if self.dv else ""))
        for field in ("mask", "normalizer", "feature_map", "strides"):
            if getattr(self, field) != Case.__dataclass_fields__[field].default:
                words.append(str(getattr(self, field)))
        if self.scale != 1.0:
            words.append(f"scale{self.scale:.3g}")
        words += ["separate"] * self.separate + ["per_head"] * self.per_head
        words.append(libmhla.DTYPE_NAMES[self.dtype])
        return "_".join(words)


def make_inputs(case, seed, device):
    """q, k, v, mixing, d_o and, when separate, q_den and k_den, strided as the case says."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*shape):
        x = torch.randn(shape, generator=generator, device=device)
        if case.dtype == torch.bfloat16:
            # bf16 of x + 1e-6 is that of 1e-6 below 3.7e-9: kernels that map pairs of elements take
            # such an x for zero, and with it the derivative. About one test run in five has one.
            x[x.abs() < 4e-9] = 0
        return x.to(case.dtype)

    b, h, nq, nk = case.batch, case.heads, case.layout.tokens, case.keys.tokens
    shapes = dict(q=(b, nq, h, case.dk), k=(b, nk, h, case.dk), v=(b, nk, h, case.width))
    if case.separate:
        shapes.update(q_den=shapes["q"], k_den=shapes["k"])
    tensors = {name: normal(*shape) for name, shape in shapes.items()}
    if case.feature_map == "identity" and case.normalizer != "none":
        # Positive where the denominator reads: a sum that cancels has no accuracy to compare.
        for name in ("q_den", "k_den") if case.separate else ("q", "k"):
            tensors[name] = tensors[name].abs()
    tensors["d_o"] = normal(b, nq, h, case.width)
    tensors = in_memory_layout(case.strides, tensors)
    rows, cols = case.layout.mixing_size, case.keys.mixing_size
    shape = (h, rows, cols) if case.per_head else (rows, cols)
    mixing = 0.1 + torch.rand(shape, generator=generator, device=device)
    tensors["mixing"] = mixing / mixing.sum(-1, keepdim=True)
    return tensors


def in_memory_layout(kind, tensors):
    """The same values with other strides: a fused projection, [B, H, N, D] storage, odd offsets."""
    if kind == "contiguous":
        return tensors
    if kind == "fused":
        qkv = torch.stack([tensors["q"], tensors["k"], tensors["v"]], dim=2)  # [B, N, 3, H, D]
        return {**tensors, "q": qkv[:, :, 0], "k": qkv[:, :, 1], "v": qkv[:, :, 2]}
    if kind == "heads_first":
        return {n: t.transpose(1, 2).contiguous().transpose(1, 2) for n, t in tensors.items()}
    if kind == "misaligned":
        return {name: misaligned(tensor) for name, tensor in tensors.items()}
    raise ValueError(kind)


def misaligned(tensor):
    """Rows start at odd multiples of the element size: no vector load is aligned."""
    b, n, h, d = tensor.shape
    row = h * d + 3
    flat = tensor.new_empty(b * n * row + 1)
    view = flat[1:].as_strided((b, n, h, d), (n * row, row, d, 1), storage_offset=1)
    view.copy_(tensor)
    return view
