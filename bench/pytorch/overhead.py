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
    dtype = torch.bfloat16 if on_gpu else torch.float32
    fused = torch.randn(256 if on_gpu else 8, 256, 3, 3, 64, device=arguments.device, dtype=dtype)
    q, k, v = fused.unbind(2)
    layout = mhla.Grid((16, 16), block=(4, 4))
    mixing = mhla.init.locality(layout).to(arguments.device)
    with_gradient = [t.detach().requires_grad_() for t in (q, k, v, mixing)]
    options = "block=4x4 mask=none normalizer=exact feature_map=relu_eps"
    d_o = torch.randn(*q.shape, device=arguments.device, dtype=dtype)
    raw = torch.ops.mhla_bench.raw
    count = 4

    def forward():
        mhla.attention(q, k, v, mixing, layout=layout)

    def both():
        torch.autograd.grad(mhla.attention(*with_gradient, layout=layout), with_gradient, d_o)

    print(f"{'':18}{'raw, us':>10}{'PyTorch, us':>13}{'overhead, us':>14}")
    for name, call, backward in (("forward", forward, False), ("forward+backward", both, True)):
        ours, kernel = [], []
        for _ in range(arguments.rounds):
            kernel.append(seconds(lambda: raw(q, k, v, mixing, [16, 16], options, count, backward), 1, arguments.device) / count)
            ours.append(seconds(call, count, arguments.device))
        a, b = statistics.median(kernel) * 1e6, statistics.median(ours) * 1e6
        print(f"{name:18}{a:10.1f}{b:13.1f}{b - a:14.1f}   (wanted: below {LIMIT_US} a call)")


if __name__ == "__main__":
    main()
