"""Attention layers with their projections, in bf16: MHLA, softmax (SDPA) and the authors' composition.

    python bench/pytorch/modules.py [--shape DiT-S-256 DiT-S-512 Wan] [--no-compile] [--json FILE]

MHLA is the layer of the authors' preset (DiT: LayerNorm, their normaliser, depthwise 3x3 of v; Wan:
RMSNorm, 3-D rotary, no normaliser); it and the composition share their parameters and are compared
before they are timed. `paper` is the operator between the projections and nothing else but rotary.
Times are medians of CUDA events (of a clock on a CPU, where only the shapes `tiny*` are sensible).
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
import authors  # noqa: E402
import mhla  # noqa: E402

# name: task, batch, heads, width of a head, grid, blocks per axis
SHAPES = {
    "tiny": ("dit", 2, 2, 16, (8, 8), (4, 4)),
    "tiny-video": ("video", 1, 2, 24, (3, 4, 6), (3, 2, 2)),
    "DiT-S-256": ("dit", 256, 6, 64, (16, 16), (4, 4)),
    "DiT-S-512": ("dit", 128, 6, 64, (32, 32), (4, 4)),
    "Wan": ("video", 1, 12, 128, (21, 30, 50), (3, 5, 10)),
}
SECONDS = 0.25  # of one measurement
CALLS = 5  # between two events, so that the host is ahead of the device as in a model


def layers(task, heads, width, grid, blocks, device):
    """ours as the authors have it and as the paper has it, softmax, and the composition"""
    torch.manual_seed(0)
    dim, layout = heads * width, mhla.Grid(grid, blocks=blocks)
    ours, paper = (
        mhla.nn.MHLA(dim, heads, layout, preset=preset, task=task, dropout=0.0) for preset in ("authors", "paper")
    )
    softmax = mhla.nn.make_attention(
        "softmax", dim=dim, heads=heads, task=task, **({"grid": grid} if task == "video" else {})
    )
    ours, paper, softmax = (layer.to(device, torch.bfloat16) for layer in (ours, paper, softmax))
    for layer in (ours, paper):
        layer.mixing.data = layer.mixing.data.float()
    theirs = (authors.DiT if task == "dit" else authors.Wan)(ours, grid, blocks)
    return ours, paper, softmax, theirs


def seconds(call, device):
    """median of one call"""
    for _ in range(3):
        call()
    if device == "cpu":
        times = []
        for _ in range(5):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return statistics.median(times)
    times, spent = [], 0.0
    while spent < SECONDS or len(times) < 5:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / CALLS)
        spent += times[-1] * CALLS
    return statistics.median(times)


def measure(layer, x, device):
    """forward, forward + backward in ms, and the peak memory of the latter in GiB"""
    parameters = list(layer.parameters())
    leaf, d_y = x.detach().requires_grad_(), torch.randn_like(x)

    def forward():
        with torch.no_grad():
            layer(x)

    def both():
        torch.autograd.grad(layer(leaf), [leaf, *parameters], d_y)

    row = [seconds(forward, device) * 1e3]
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    row.append(seconds(both, device) * 1e3)
    row.append(torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0)
    return row


def verify(ours, theirs, x, x_theirs, restore):
    """Ours and the composition compute the same: their difference is that of bf16."""
    with torch.no_grad():
        a, b = ours(x).float(), restore(theirs(x_theirs)).float()
    error = ((a - b).norm() / b.norm()).item()
    assert error < 0.02, f"ours and the composition differ by {error}"
    return error


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=list(SHAPES), default=["DiT-S-256", "DiT-S-512", "Wan"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--only-compile", action="store_true", help="fills the compiler's cache beforehand")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    device, results = arguments.device, []
    print(f"{'shape':10} {'layer':22}{'forward, ms':>13}{'and backward':>14}{'peak, GiB':>11}   x ours")
    for shape in arguments.shape:
        task, batch, heads, width, grid, blocks = SHAPES[shape]
        ours, paper, softmax, theirs = layers(task, heads, width, grid, blocks, device)
        tokens = mhla.Grid(grid, blocks=blocks).tokens
        x = torch.randn(batch, tokens, heads * width, device=device, dtype=torch.bfloat16)
        block_order = task == "dit"
        x_theirs = authors.to_blocks(x, grid, blocks) if block_order else x
        restore = (lambda y: authors.from_blocks(y, grid, blocks)) if block_order else (lambda y: y)
        error = verify(ours, theirs, x, x_theirs, restore)
        contestants = [
            ("MHLA", ours, x),
            ("MHLA, paper", paper, x),
            ("softmax, SDPA", softmax, x),
            ("authors", theirs, x_theirs),
        ]
        if not arguments.no_compile:
            compiled = [
                (f"{name}, compiled", torch.compile(layer, fullgraph=True, dynamic=False), given)
                for name, layer, given in contestants
            ]
            contestants = compiled if arguments.only_compile else contestants + compiled
        first = None
        for name, layer, given in contestants:
            row = measure(layer, given, device)
            first = first or row
            print(
                f"{shape:10} {name:22}{row[0]:13.3f}{row[1]:14.3f}{row[2]:11.2f}"
                f"   {row[0] / first[0]:.2f} / {row[1] / first[1]:.2f}",
                flush=True,
            )
            results.append(dict(shape=shape, layer=name, forward_ms=row[0], both_ms=row[1], peak_gib=row[2]))
        print(f"{'':10} ours and the composition agree to {error:.1e}", flush=True)
        torch._dynamo.reset()
        del ours, paper, softmax, theirs, contestants, layer
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
