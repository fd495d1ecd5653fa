"""What a call from PyTorch costs beyond its kernel, at the DeiT-T shape (B 8 on a CPU, 256 on a GPU).

    python bench/pytorch/overhead.py [--device cuda] [--module build/release/bench/libmhla_bench_raw.so]

Per call of a chain of 16, each reading the result of the one before, as in a model:
  forward               under no_grad
  forward, recorded     inputs require gradients: the graph is made and dropped
  forward+backward      and one backward pass: gradients of all inputs of all calls
  ..., alone            a chain of one, which also starts the engine for itself
  nothing               the same with an operator that has as many inputs and results and computes
                        nothing: what PyTorch itself takes for recording, engine and memory
`raw` does the same by calling libmhla from C++ with plan and workspace made beforehand; its results
are fresh tensors, too. Overhead is what `mhla.attention` takes beyond it.
The two are timed in turns and medians are compared: on a CPU the processor time of one thread, which
other programs do not lengthen; on a GPU, where the kernel runs beside the host, the host's time to
enqueue the work.
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
CHAIN = 16


def seconds(call, device):
    if device == "cuda":
        torch.cuda.synchronize()
    clock = time.perf_counter if device == "cuda" else time.thread_time
    start = clock()
    call()
    return clock() - start


def compare(rows, rounds, device):
    """name -> (call, raw call or None, calls in each): prints medians in us, measured in turns"""
    for name, (call, raw, count) in rows.items():
        ours, kernel = [], []
        for _ in range(rounds):
            kernel.append(seconds(raw, device) / count if raw else 0.0)
            ours.append(seconds(call, device) / count)
        a, b = (statistics.median(times[rounds // 10 :]) * 1e6 for times in (kernel, ours))
        print(f"{name:44}{a:9.1f}{b:13.1f}{b - a:14.1f}", flush=True)


def measure(shape, batch, grid, width, arguments):
    device = arguments.device
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = torch.randn(batch, grid[0] * grid[1], 3, 3, width, device=device, dtype=dtype).unbind(2)
    layout = mhla.Grid(grid, block=(4, 4))
    mixing = mhla.init.locality(layout).to(device)
    x = q.detach().requires_grad_()
    layers = [[t.detach().requires_grad_() for t in (k, v, mixing)] for _ in range(CHAIN)]
    options = "block=4x4 mask=none normalizer=exact feature_map=relu_eps"
    d_o = torch.randn(*q.shape, device=device, dtype=dtype)

    def raw(depth, backward):
        lists = [[t.detach() for t in each] for each in zip(*layers[:depth])]
        return lambda: torch.ops.mhla_bench.raw(q, *lists, d_o if backward else None, list(grid), options)

    def ours(*tensors):
        return mhla.attention(*tensors, layout=layout)

    def chain(operator, depth):
        y = x
        for layer in layers[:depth]:
            y = operator(y, *layer)
        return y

    def forward(depth):
        with torch.no_grad():
            chain(ours, depth)

    def both(operator, depth):
        leaves = [x, *(t for layer in layers[:depth] for t in layer)]
        return lambda: torch.autograd.grad(chain(operator, depth), leaves, d_o)

    nothing = torch.ops.mhla_bench.nothing.default
    rows = {
        "forward": (lambda: forward(CHAIN), raw(CHAIN, False), CHAIN),
        "forward, recorded": (lambda: chain(ours, CHAIN), raw(CHAIN, False), CHAIN),
        "forward+backward": (both(ours, CHAIN), raw(CHAIN, True), CHAIN),
        "forward+backward, alone": (both(ours, 1), raw(1, True), 1),
        "nothing": (both(nothing, CHAIN), None, CHAIN),
        "nothing, alone": (both(nothing, 1), None, 1),
    }
    compare({f"{shape}, {name}": row for name, row in rows.items()}, arguments.rounds, device)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--module", default=str(ROOT / "build/release/bench/libmhla_bench_raw.so"))
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.ops.load_library(arguments.module)
    on_gpu = arguments.device == "cuda"
    print(f"{'':44}{'raw, us':>9}{'PyTorch, us':>13}{'overhead, us':>14}   (wanted: below {LIMIT_US} a call)")
    measure("DeiT-T", 256 if on_gpu else 8, (16, 16), 64, arguments)
    # The same path with a kernel of a few microseconds, where the difference is above the noise.
    measure("16 tokens", 1, (4, 4), 16, arguments)


if __name__ == "__main__":
    main()
