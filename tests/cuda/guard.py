"""Buffers that notice a write outside of what was asked for, and an element never written."""

import torch

import libmhla

GUARD_BYTES = 4096  # before and after; more than any tile row of a kernel overshoots by mistake
GUARD = 0xA5
POISON = 0xFF  # every byte 0xFF is a NaN in f16, bf16, f32 and f64


class Guarded:
    """A tensor inside a larger allocation; all that lies around and between it is watched."""

    def __init__(self, shape, dtype, device, strides=None):
        size = torch.empty(0, dtype=dtype).element_size()
        if strides is None:
            strides = torch.empty(shape, device="meta").stride()
        pad = GUARD_BYTES // size
        span = 1 + sum((n - 1) * s for n, s in zip(shape, strides)) if 0 not in shape else 0
        self.flat = torch.empty(span + 2 * pad, dtype=dtype, device=device)
        self.flat.view(torch.uint8).fill_(GUARD)
        self.tensor = self.flat.as_strided(shape, strides, pad)
        self.tensor.fill_(float("nan"))

    def check(self, name):
        assert not torch.isnan(self.tensor).any(), f"{name}: NaN, or an element was never written"
        outside = self.flat.clone()
        inside = outside.as_strided(self.tensor.shape, self.tensor.stride(),
                                    self.tensor.storage_offset())
        pattern = torch.full((outside.element_size(),), GUARD, dtype=torch.uint8)
        inside.fill_(pattern.view(outside.dtype).item())
        damaged = (outside.view(torch.uint8) != GUARD).nonzero()
        assert damaged.numel() == 0, (
            f"{name}: {damaged.numel()} bytes outside of the tensor were written, the first at "
            f"byte {damaged[0].item() - GUARD_BYTES} from its start")


class GuardedWorkspace:
    """Exactly the bytes the plan asked for, poisoned, between guards."""

    def __init__(self, size, device):
        guard = max(GUARD_BYTES, libmhla.WORKSPACE_ALIGNMENT)
        self.raw = torch.empty(size + 2 * guard + libmhla.WORKSPACE_ALIGNMENT, dtype=torch.uint8,
                               device=device)
        self.raw.fill_(GUARD)
        self.start = guard + -(self.raw.data_ptr() + guard) % libmhla.WORKSPACE_ALIGNMENT
        self.space = self.raw[self.start:self.start + size]
        self.space.fill_(POISON)

    def check(self):
        end = self.start + self.space.numel()
        assert (self.raw[:self.start] == GUARD).all(), "bytes before the workspace were written"
        assert (self.raw[end:] == GUARD).all(), "bytes after the workspace were written"


def strides_like(kind, shape):
    """Strides of an output in the memory layout of a case (see cases.in_memory_layout)."""
    b, n, h, d = shape
    if kind == "fused":  # a slice of [B, N, 3, H, D]: its neighbours are watched
        return (3 * n * h * d, 3 * h * d, d, 1)
    if kind == "heads_first":
        return (h * n * d, d, n * d, 1)
    if kind == "misaligned":
        return (n * (h * d + 3), h * d + 3, d, 1)
    return (n * h * d, h * d, d, 1)
