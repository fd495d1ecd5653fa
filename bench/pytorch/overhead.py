"""What a call from PyTorch costs beyond its kernel, at the DeiT-T shape (B 8 on a CPU, 256 on a GPU).

    python bench/pytorch/overhead.py [--device cuda] [--module build/release/bench/libmhla_bench_raw.so]

`raw` calls libmhla from C++ with plan, workspace and views made beforehand; its results are fresh
tensors too. Overhead is what `mhla.attention` takes beyond it, from Python:
  forward               under no_grad
  forward, recorded     inputs require gradients: the graph is made and dropped
  forward+backward      per call of a chain of 16 with a backward pass through all of it, as in a
                        model: recording, the engine's work for the node, gradients of all inputs
  alone                 one call and a backward pass for it, which also starts the engine
  nothing               an operator with as many inputs and results that computes nothing: what
                        PyTorch itself takes for recording, engine and memory
On a CPU the two are timed in turns and medians are compared. On a GPU the kernel runs beside the
host, so there the host's time to enqueue is compared.
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
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(pairs, rounds, device):
    """name -> (call, raw call, calls in each): prints medians in us, measured in turns"""
    for name, (call, raw, count) in pairs.items():
        ours, kernel = [], []
        for _ in range(rounds):
            kernel.append(seconds(raw, device) / count)
            ours.append(seconds(call, device) / count)
        a, b = (statistics.median(times[rounds // 10 :]) * 1e6 for times in (kernel, ours))
        print(f"{name:44}{a:9.1f}{b:13.1f}{b - a:14.1f}", flush=True)


def repeated(call, count):
    def run():
        for _ in range(count):
            call()

    return run


def measure(shape, batch, grid, width, arguments):
    device = arguments.device
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = torch.randn(batch, grid[0] * grid[1], 3, 3, width, device=device, dtype=dtype).unbind(2)
    layout = mhla.Grid(grid, block=(4, 4))
    mixing = mhla.init.locality(layout).to(device)
    leaves = [t.detach().requires_grad_() for t in (q, k, v, mixing)]
    layers = [[t.detach().requires_grad_() for t in (k, v, mixing)] for _ in range(CHAIN)]
    every = [leaves[0], *(t for layer in layers for t in layer)]
    options = "block=4x4 mask=none normalizer=exact feature_map=relu_eps"
    d_o = torch.randn(*q.shape, device=device, dtype=dtype)

    def raw(count, backward):
        return lambda: torch.ops.mhla_bench.raw(q, k, v, mixing, list(grid), options, count, backward)

    def ours(*tensors):
        return mhla.attention(*tensors, layout=layout)

    def chain(operator):
        x = leaves[0]
        for layer in layers:
            x = operator(x, *layer)
        torch.autograd.grad(x, every, d_o)

    def alone(operator):
        torch.autograd.grad(operator(*leaves), leaves, d_o)

    nothing = torch.ops.mhla_bench.nothing.default
    rows = {
        "forward": (repeated(lambda: ours(q, k, v, mixing), 4), raw(4, False), 4),
        "forward, recorded": (repeated(lambda: ours(*leaves), 4), raw(4, False), 4),
        f"forward+backward, chain of {CHAIN}": (lambda: chain(ours), raw(CHAIN, True), CHAIN),
        "forward+backward, alone": (repeated(lambda: alone(ours), 4), raw(4, True), 4),
        f"nothing, chain of {CHAIN}": (lambda: chain(nothing), lambda: None, CHAIN),
        "nothing, alone": (repeated(lambda: alone(nothing), 4), lambda: None, 4),
    }
    compare({f"{shape}, {name}": row for name, row in rows.items()}, arguments.rounds, device)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--module", default=str(ROOT / "build/release/bench/libmhla_bench_raw.so"))
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    torch.ops.load_library(arguments.module)
    on_gpu = arguments.device == "cuda"
    print(f"{'':44}{'raw, us':>9}{'PyTorch, us':>13}{'overhead, us':>14}   (wanted: below {LIMIT_US} a call)")
    measure("DeiT-T", 256 if on_gpu else 8, (16, 16), 64, arguments)
    # The same path with a kernel of a few microseconds, where the difference is above the noise.
    measure("16 tokens", 1, (4, 4), 16, arguments)


if __name__ == "__main__":
    main()
