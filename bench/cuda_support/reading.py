"""A kernel that only reads, in Triton; importing this fails where there is none."""

import torch
import triton
import triton.language as tl


@triton.jit
def sum_blocks(numbers, sums, BLOCK: tl.constexpr):
    """Every number once, and a sum for each block, so that no load is left out."""
    block = tl.program_id(0)
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + block, tl.sum(tl.load(numbers + at), 0))


def read_once(numbers, sums):
    """sums[i]: of the i-th of equal parts of `numbers`, whose lengths are a power of two."""
    block = numbers.numel() // sums.numel()
    sum_blocks[(sums.numel(),)](numbers, sums, BLOCK=block, num_warps=max(1, min(block // 512, 8)))


def check(device):
    """One reading against PyTorch's sum."""
    numbers, sums = torch.randn(1 << 16, device=device), torch.empty(32, device=device)
    read_once(numbers, sums)
    torch.testing.assert_close(sums, numbers.view(32, -1).sum(1), rtol=1e-4, atol=1e-3)
