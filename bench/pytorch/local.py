#!/usr/bin/env python3
"""The operator and the convolution of v beside it, in one call and in two, against softmax.

Checked first, then timed: microseconds of one forward at DiT-S/2's shape at 256 px (a layer of the
authors' DiT), bf16, q, k and v slices of one projection.
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
import mhla  # noqa: E402


def microseconds(run, rounds: int = 60) -> float:
    """The median over single calls; the inputs are larger than the L2 cache."""
    for _ in range(5):
        run()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(rounds)]
    for start, end in marks:
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return sorted(1e3 * start.elapsed_time(end) for start, end in marks)[rounds // 2]


def captured(run):
    """The same as a CUDA graph, so that no launch is waited for."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph.replay


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    arguments = parser.parse_args()
    torch.manual_seed(1)
    batch, heads, width = arguments.batch, arguments.heads, 64
    options = dict(device="cuda", dtype=getattr(torch, arguments.dtype))
    layout = mhla.Grid((16, 16), block=(4, 4))
    q, k, v = torch.randn(batch, 256, 3, heads, width, **options).unbind(2)
    mixing = torch.rand(16, 16, device="cuda")
    weight, bias = torch.randn(heads * width, 1, 3, 3, **options), torch.randn(heads * width, **options)

    def operator(normalizer):
        return mhla.attention(q, k, v, mixing, layout=layout, normalizer=normalizer)

    def both(normalizer):
        return mhla.attention(q, k, v, mixing, layout=layout, normalizer=normalizer, local=(weight, bias))

    def apart(normalizer):
        return torch.ops.mhla.grid_convolution(v, layout.size, weight, bias, operator(normalizer))

    def softmax():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)))

    for normalizer in ("shared_position", "exact"):
        exact = (x[:2].cpu().double() for x in (q, k, v))
        truth = mhla.attention(*exact, mixing.cpu().double(), layout=layout, normalizer=normalizer,
                               local=(weight.cpu().double(), bias.cpu().double()))  # fmt: skip
        got = both(normalizer)[:2].cpu().double()
        error = ((got - truth).norm() / truth.norm()).item()
        if not error < 4e-3:
            sys.exit(f"{normalizer}: wrong, off by {error:.2e}")
    print("batch", batch, "heads", heads, arguments.dtype)
    copy = torch.empty_like(q.contiguous())
    rows = {"copy of q (reads and writes it once)": lambda: copy.copy_(q), "softmax, cuDNN": softmax}
    for normalizer in ("shared_position", "exact"):
        rows[f"{normalizer}: operator"] = lambda n=normalizer: operator(n)
        rows[f"{normalizer}: operator and convolution, one call"] = lambda n=normalizer: both(n)
        rows[f"{normalizer}: operator, then convolution"] = lambda n=normalizer: apart(n)
    for name, run in rows.items():
        print(f"  {microseconds(captured(run)):8.1f} us  {name}")
    # Tensors that the copy engine cannot gather would go to the kernels before: see who ran.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        both("shared_position")
        torch.cuda.synchronize()
    print("kernels:", ", ".join(sorted({e.key[:70] for e in profile.key_averages() if "kernel" in e.key})))
    print(mhla.explain(q, k, v, mixing, layout=layout, normalizer="shared_position").split("chosen")[1].split("\n")[0])


main()
