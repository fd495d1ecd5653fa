"""What a call from PyTorch costs beyond its kernel, at the DeiT-T shape (B 1 and 8 on a CPU, 256 on a GPU).

    python bench/pytorch/overhead.py [--device cuda] [--module build/release/bench/libmhla_bench_raw.so]

Per call of a chain of 16, each reading the result of the one before, as in a model:
  forward               under no_grad
  forward, recorded     inputs require gradients: the graph is made and dropped
  forward+backward      and one backward pass: gradients of all inputs of all calls
  ..., alone            a chain of one, which also starts the engine for itself
  nothing               the same with an operator that has as many inputs and results and computes
                        nothing: what PyTorch itself takes for recording, engine and memory
`raw` does the same by calling libmhla from C++ with plan and workspace made beforehand; its results
are fresh tensors, too, and live as long. Overhead is what `mhla.attention` takes beyond it.
Memory that was freed is kept by the process: how the C library gives it back and gets it again, page
by page, is no part of a call, and at the DeiT-T shape takes more than the call itself.
The two are timed in turns: on a CPU the processor time of one thread, on a GPU, where the kernel runs
beside the host, the host's time to enqueue the work. Neighbours on the same processor take caches and
memory away, which only ever adds time, so that the lowest tenths of both are compared as well as medians.

On a CPU the difference of two times of 2 ms drowns in their noise, and what a call costs depends on what the
kernel before it left of the code in the caches. So it is also measured apart, as `after DeiT-T`: the kernel
of that shape runs and is not timed, then a call with 16 tokens is, from Python or raw, until its result is freed.
"""

import argparse
import ctypes
import sys
import threading
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
import mhla  # noqa: E402

LIMIT_US = 15  # issue 6
CHAIN = 16
OPTIONS = "block=4x4 mask=none normalizer=exact feature_map=relu_eps"


def keep_freed_memory():
    """Tells glibc neither to map large blocks one by one nor to give the end of the heap back."""
    trim_threshold, map_threshold = -1, -3  # of malloc.h
    for parameter, value in ((trim_threshold, 1 << 30), (map_threshold, 32 << 20)):  # the most
        if not ctypes.CDLL(None).mallopt(parameter, value):
            print(f"overhead: malloc refused parameter {parameter}: page faults are counted", file=sys.stderr)


def seconds(call, device):
    """In a thread of its own, after a call that is not counted: workspaces belong to threads, and the
    next thread gets the memory of the last. Kept ones lie apart, and where memory lies changes the time
    of a kernel of 2 ms by 20 us and more."""
    result = []

    def body():
        torch.set_num_threads(1)
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        clock = time.perf_counter if device == "cuda" else time.thread_time
        start = clock()
        call()
        result.append(clock() - start)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return result[0]


def show(name, kernel, ours):
    tenth, middle = len(ours) // 10, len(ours) // 2
    print(f"{name:38}{kernel[tenth]:9.1f}{ours[tenth]:13.1f}{ours[tenth] - kernel[tenth]:10.1f}"
          f"{kernel[middle]:12.1f}{ours[middle]:13.1f}{ours[middle] - kernel[middle]:10.1f}", flush=True)


def compare(rows, rounds, device):
    """name -> (call, raw call or None, calls in each): prints us of the lowest tenth and the middle"""
    for name, (call, raw, count) in rows.items():
        ours, kernel = [], []
        for turn in range(rounds):
            for first in (turn % 2 == 0, turn % 2 != 0):
                if first:
                    kernel.append(seconds(raw, device) / count * 1e6 if raw else 0.0)
                else:
                    ours.append(seconds(call, device) / count * 1e6)
        show(name, sorted(kernel[rounds // 10 :]), sorted(ours[rounds // 10 :]))


def inputs(batch, grid, width, device, dtype):
    q, k, v = torch.randn(batch, grid[0] * grid[1], 3, 3, width, device=device, dtype=dtype).unbind(2)
    layout = mhla.Grid(grid, block=(4, 4))
    return [q, k, v, mhla.init.locality(layout).to(device)], layout


def measure(shape, batch, grid, width, arguments):
    device = arguments.device
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    (q, k, v, mixing), layout = inputs(batch, grid, width, device, dtype)
    x = q.detach().requires_grad_()
    layers = [[t.detach().requires_grad_() for t in (k, v, mixing)] for _ in range(CHAIN)]
    d_o = torch.randn(*q.shape, device=device, dtype=dtype)

    def raw(depth, recorded=True, backward=False):
        lists = [[t.detach() for t in each] for each in zip(*layers[:depth])]
        end = (recorded, d_o if backward else None, list(grid), OPTIONS)
        return lambda: torch.ops.mhla_bench.raw(q, *lists, *end)

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
        "forward": (lambda: forward(CHAIN), raw(CHAIN, recorded=False), CHAIN),
        "forward, recorded": (lambda: chain(ours, CHAIN), raw(CHAIN), CHAIN),
        "forward+backward": (both(ours, CHAIN), raw(CHAIN, backward=True), CHAIN),
        "forward+backward, alone": (both(ours, 1), raw(1, backward=True), 1),
        "nothing": (both(nothing, CHAIN), None, CHAIN),
        "nothing, alone": (both(nothing, 1), None, 1),
    }
    compare({f"{shape}, {name}": row for name, row in rows.items()}, arguments.rounds, device)


def measure_after(shape, batch, grid, width, rounds):
    """A call with 16 tokens, out of the caches that a kernel of this shape leaves."""
    large, _ = inputs(batch, grid, width, "cpu", torch.float32)
    small, layout = inputs(1, (4, 4), 16, "cpu", torch.float32)
    recorded = [t.detach().requires_grad_() for t in small]
    kernel = (large, list(grid))
    count = 10

    def raw():
        return torch.ops.mhla_bench.after(*kernel, small, [4, 4], OPTIONS, count)

    def ours(tensors, clock=time.thread_time_ns):
        times = []
        for _ in range(count):
            torch.ops.mhla_bench.after(*kernel, [], [], OPTIONS, 1)
            start = clock()
            o = mhla.attention(*tensors, layout=layout)
            del o
            times.append((clock() - start) / 1e3)
        return times

    times = {"raw": [], "forward": [], "forward, recorded": []}
    for _ in range(rounds):
        times["raw"] += raw()
        with torch.no_grad():
            times["forward"] += ours(small)
        times["forward, recorded"] += ours(recorded)
    kernel = sorted(times.pop("raw"))
    for name, ours in times.items():
        show(f"after {shape}, {name}", kernel, sorted(ours))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--module", default=str(ROOT / "build/release/bench/libmhla_bench_raw.so"))
    parser.add_argument("--rounds", type=int, default=80)
    arguments = parser.parse_args()
    if not Path(arguments.module).exists():
        parser.error(f"{arguments.module} is not there: cmake --build --preset release --target mhla_bench_raw")
    torch.set_num_threads(1)
    keep_freed_memory()
    torch.ops.load_library(arguments.module)
    on_gpu = arguments.device == "cuda"
    print(f"us a call; wanted over the kernel: below {LIMIT_US}")
    print(f"{'':38}{'raw, 10 %':>9}{'PyTorch':>13}{'over':>10}{'raw, median':>12}{'PyTorch':>13}{'over':>10}")
    for batch in (256,) if on_gpu else (1, 8):
        if not on_gpu:
            measure_after(f"DeiT-T, B {batch}", batch, (16, 16), 64, arguments.rounds)
        measure(f"DeiT-T, B {batch}", batch, (16, 16), 64, arguments)
    # The same path with a kernel of a few microseconds, where the difference is above the noise.
    measure("16 tokens", 1, (4, 4), 16, arguments)


if __name__ == "__main__":
    main()
