"""A few small calls for compute-sanitizer: every kernel once, no PyTorch kernel in between.

Run through scripts/gpu-check memcheck racecheck. Data is made on the host and copied, and PyTorch's caching
allocator is off, so that each tensor is an allocation of its own and an overrun is noticed.
"""

import os
import sys

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"

import torch

import libmhla
from cases import Case, grid, make_inputs, sequence

CASES = [
    Case(grid((16, 16), block=(4, 4)), batch=1),
    Case(grid((14, 14), block=(4, 4)), batch=1, dk=72, strides="fused"),
    Case(grid((5, 7, 9), block=(2, 3, 4)), batch=1, heads=1, dk=128, normalizer="none"),
    Case(sequence((40, 0, 7, 33), block=16), batch=1, dk=32, normalizer="shared_position"),
    Case(grid((16, 16), block=(4, 4)), batch=34, heads=4, normalizer="shared_position"),
    Case(grid((14, 14), blocks=(4, 4)), batch=2, heads=2, dk=72, normalizer="shared_position"),
    Case(grid((32, 32), block=(8, 8)), batch=2, heads=9, normalizer="shared_position"),
    Case(sequence(100, block=64), batch=1, mask="causal", normalizer="none", dk=128, dv=256),
    Case(sequence(70, block=32), batch=1, mask="block_causal", strides="misaligned"),
    Case(sequence(33, block=16), batch=2, dk=33, dv=17, mask="causal", dtype=torch.float16),
    Case(sequence(50, block=16), layout_k=sequence(37, block=32), batch=1, per_head=True,
         dtype=torch.float32),
    Case(sequence(65, block=64), batch=1, separate=True, feature_map="elu1"),
    Case(grid((9, 13, 12), block=(7, 6, 5)), batch=1, heads=3, dk=128, strides="fused"),
    Case(grid((20, 33), block=(16, 16)), batch=2),
    Case(grid((20, 33), block=(16, 16)), batch=2, dk=32),
    Case(grid((20, 33), block=(16, 16)), batch=2, normalizer="shared_position"),
    Case(grid((20, 33), block=(16, 16)), batch=2, dk=32, normalizer="shared_position"),
    Case(grid((9, 13, 12), block=(7, 6, 5)), batch=1, dk=128, normalizer="shared_position"),
    # Blocks of two sizes.
    Case(grid((14, 12, 16), blocks=(2, 2, 3)), batch=1, dk=128, strides="fused"),
    Case(grid((15, 12, 10), blocks=(2, 2, 2)), batch=1, normalizer="shared_position"),
    Case(sequence(204, block=2), batch=1, dk=32),
    # Heads of a few columns, and d_o . o from a read-out of its own.
    Case(sequence(40, block=16), batch=1, dk=8, dv=5, separate=True, feature_map="elu1"),
    Case(sequence(40, block=16), batch=1, dk=16, mask="causal", dtype=torch.float16),
    Case(sequence(150, block=70), batch=1, dk=40, dv=7, mask="causal"),
    Case(sequence(70, block=35), batch=1, dk=12, dv=64, normalizer="shared_position", dtype=torch.float16),
    # Three groups of eight blocks, the first of which is read back: cuda.columns.
    Case(sequence(1100, block=64), batch=1, heads=1, dk=72, dv=40, mask="causal", normalizer="none"),
    # More parts of heads than multiprocessors.
    Case(sequence(130, block=64), batch=17, heads=2, dk=128, dv=256, mask="causal", normalizer="none"),
    # All weights resident: up to 160 blocks, up to 256.
    Case(sequence(200, block=2), batch=1, heads=1, dk=32),
    Case(sequence(340, block=2), batch=1, heads=1, dk=32),
    # Whole heads in shared memory, in the widths and types of cuda.dense.
    Case(grid((16, 16), block=(4, 4)), batch=1, heads=3, dk=72),
    Case(grid((16, 16), block=(4, 4)), batch=34, heads=4, dk=96),
    Case(grid((14, 14), block=(4, 4)), batch=1, dk=32, dtype=torch.float16),
    Case(sequence(300, block=64), batch=1, heads=1, dk=96),
    # Boxes of 64 tokens: clusters of cuda.fused, all widths, and a tensor without a tensor map.
    Case(grid((32, 32), block=(8, 8)), batch=1, heads=2),
    Case(grid((32, 32), block=(8, 8)), batch=1, heads=2, dk=96),
    Case(grid((56, 56), block=(8, 8)), batch=1, heads=1, dk=32),
    Case(grid((32, 32), block=(8, 8)), batch=1, heads=1, strides="misaligned"),
]
# Streams: pieces and steps, closing blocks on the way; blocks of one token reach the wide groups.
STREAMS = [
    Case(sequence(90, block=16), batch=1, dk=128, dv=256, mask="causal", normalizer="none"),
    Case(sequence(40, block=7), batch=1, dk=33, dv=50, mask="causal", per_head=True,
         normalizer="shared_position", dtype=torch.float32),
    Case(sequence(48, block=8), batch=1, dk=48, mask="block_causal", dtype=torch.float16),
    Case(sequence(200, block=1), batch=1, heads=1, dk=16, mask="causal"),
    Case(sequence(200, block=1), batch=1, heads=1, dk=32, mask="causal"),
]


def to_device(tensor, device):
    """The same strides on the device: the whole storage is copied, not the view."""
    flat = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return flat.to(device).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def call(case, implementation, device):
    plan = libmhla.plan(case.text(device), implementation)
    inputs = {n: to_device(t, device) for n, t in make_inputs(case, 1, "cpu").items()}

    def like(tensor):
        return torch.full(tensor.shape, float("nan"), dtype=tensor.dtype).to(device)

    o = like(inputs["d_o"])
    gradients = {"d_" + n: like(t) for n, t in inputs.items() if n != "d_o"}
    operands = {n: t for n, t in inputs.items() if n != "d_o"}
    libmhla.forward(plan, **operands, o=o)
    libmhla.backward(plan, **inputs, o=o, gradients=gradients)
    results = [o, *gradients.values()]
    return not any(torch.isnan(result.cpu()).any() for result in results)


def walk(case, device):
    """Half of the tokens in two pieces, the others one by one; block_causal: all in pieces."""
    host = make_inputs(case, 1, "cpu")
    state = libmhla.State(case.text(device), host["mixing"])
    tokens = {n: to_device(host[n], device) for n in ("q", "k", "v")}
    o = torch.full(host["d_o"].shape, float("nan"), dtype=case.dtype).to(device)
    block, count = case.layout.block[0], case.layout.tokens
    half = count // 2 // block * block
    steps = range(half, count, block) if case.mask == "block_causal" else range(half, count)
    edges = [0, half // 2 // block * block, *steps, count]
    for first, last in zip(edges, edges[1:]):
        state.read(o[:, first:last], **{n: t[:, first:last] for n, t in tokens.items()})
    return not torch.isnan(o.cpu()).any()


def local_terms(device):
    """A convolution of v inside the operator's kernel, both ways it is done, and norms; through PyTorch."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python"))
    import mhla

    def numbers(*shape):
        return torch.randn(*shape).to(torch.bfloat16).to(device)

    results = []
    with torch.no_grad():
        for normalizer in ("shared_position", "exact"):
            for block in ((4, 4), (2, 8)):
                layout = mhla.Grid((16, 16), block=block)
                q, k, v = numbers(3, 256, 3, 2, 64).unbind(2)
                local = numbers(128, 1, 3, 3), numbers(128)
                mixing = mhla.init.locality(layout).to(device)
                results.append(mhla.attention(q, k, v, mixing, layout=layout, normalizer=normalizer, local=local))
        for width in (64, 384, 1152):
            x, branch = numbers(2, 90, width), numbers(2, 90, width)
            gate, shift, scale = numbers(3, 2, width)
            results += torch.ops.mhla.residual_norm(x, branch, gate, None, None, shift, scale, eps=1e-6, rms=False)
    return not any(torch.isnan(result.cpu()).any() for result in results)


def main():
    """Arguments: implementations, `state`, `torch`; MHLA_SHARE=I/N takes every N-th call from the I-th on."""
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    names = sys.argv[1:] or [*libmhla.implementations(device), "state"]
    if not sys.argv[1:] and "MHLA_TORCH_LIBRARY" in os.environ:
        names.append("torch")
    calls = []
    for name in names:
        if name == "torch":
            calls.append((name, "norms and local terms", lambda _: local_terms(device)))
        elif name == "state":
            calls += [(name, case.name(), lambda _, case=case: walk(case, device)) for case in STREAMS]
        else:
            calls += [(name, case.name(), lambda name, case=case: call(case, name, device)) for case in CASES]
    first, step = map(int, os.environ.get("MHLA_SHARE", "0/1").split("/"))
    wrong = 0
    for name, what, function in calls[first::step]:
        try:
            answer = "ran" if function(name) else "NaN in the result"
        except libmhla.Refused as refusal:
            answer = f"refused: {libmhla.reason(refusal, name)}"
        wrong += answer.startswith("NaN")
        print(f"{name} {what}: {answer}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
