"""What a call from PyTorch costs beyond its kernel, at the DeiT-T shape (B 8 on a CPU, 256 on a GPU).

    python bench/pytorch/overhead.py [--device cuda] [--module build/release/bench/libmhla_bench_raw.so]

On a CPU both are timed in turns and medians are compared. On a GPU the kernel runs beside the host,
so there the host's time to enqueue one call is compared with that of the raw call.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
import mhla  # noqa: E402

LIMIT_US = 15  # issue 6


def seconds(call, count, device):
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--module", default=str(ROOT / "build/release/bench/libmhla_bench_raw.so"))
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    torch.ops.load_library(arguments.module)
    on_gpu = arguments.device == "cuda"
    print(f"{'':32}{'raw, us':>10}{'PyTorch, us':>13}{'overhead, us':>14}   (wanted: below {LIMIT_US} a call)")
    measure("DeiT-T", 256 if on_gpu else 8, (16, 16), 64, arguments)
    # The same path with a kernel of a few microseconds, where the difference is above the noise.
    measure("one sequence of 16 tokens", 1, (4, 4), 16, arguments)


def measure(shape, batch, grid, width, arguments):
    device, count = arguments.device, 4
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = torch.randn(batch, grid[0] * grid[1], 3, 3, width, device=device, dtype=dtype).unbind(2)
    layout = mhla.Grid(grid, block=(4, 4))
    mixing = mhla.init.locality(layout).to(device)
    with_gradient = [t.detach().requires_grad_() for t in (q, k, v, mixing)]
    options = "block=4x4 mask=none normalizer=exact feature_map=relu_eps"
    d_o = torch.randn(*q.shape, device=device, dtype=dtype)

    def forward():
        mhla.attention(q, k, v, mixing, layout=layout)

    def both():
        torch.autograd.grad(mhla.attention(*with_gradient, layout=layout), with_gradient, d_o)

    for name, call, backward in (("forward", forward, False), ("forward+backward", both, True)):

        def raw(backward=backward):
            torch.ops.mhla_bench.raw(q, k, v, mixing, list(grid), options, count, backward)

        ours, kernel = [], []
        for _ in range(arguments.rounds):
            kernel.append(seconds(raw, 1, device) / count)
            ours.append(seconds(call, count, device))
        a, b = statistics.median(kernel) * 1e6, statistics.median(ours) * 1e6
        print(f"{shape + ', ' + name:44}{a:8.1f}{b:13.1f}{b - a:14.1f}")


if __name__ == "__main__":
    main()
